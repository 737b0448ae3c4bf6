//! The agents' door of a server: a port of its own, opened where there is a key to sign for agents with.

use crate::config::Config;
use service::Service;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The port, where it is open.
pub struct Agents(Option<TcpListener>);

impl Agents {
    /// A port that is taken is an error; a key that is missing is none, and said.
    pub async fn open(config: &Config, service: &Service) -> Result<Self, String> {
        let agents = &config.agents;
        let without = |why: String| {
            service.serves_agents(agents.setup(Err(why)));
            Ok(Self(None))
        };
        if !agents.enabled {
            return without("this server takes no agents (agents.enabled = false); ask one that does".to_owned());
        }
        if let Some(why) = service.vault().keys().problem() {
            tracing::warn!("no agents are taken: {why}");
            return without(format!("this server takes no agents: {why}"));
        }
        let listen = agents.listen_at(&config.server.listen)?;
        let failed = |e: std::io::Error| {
            format!("listening on {listen} for agents: {e}; set agents.listen or --agent-listen, or say --no-agents")
        };
        let listener = TcpListener::bind(&listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let public_url = agents.public_url(address);
        match &public_url {
            Ok(url) => tracing::info!(%address, url, "agents are taken"),
            Err(why) => tracing::info!(%address, why, "agents are taken, and no bundles can be made for new ones"),
        }
        service.serves_agents(agents.setup(public_url));
        Ok(Self(Some(listener)))
    }

    /// Serves until `stop`. `guard` goes when nobody does any more.
    pub fn run(self, config: &Config, service: &Service, stop: &CancellationToken, guard: DropGuard) -> JoinHandle<()> {
        let Some(listener) = self.0 else {
            drop(guard.disarm());
            return tokio::spawn(async {});
        };
        let options = api::AgentOptions { connections_max: config.agents.connections, ..api::AgentOptions::default() };
        let serving = api::serve_agents(listener, service.clone(), options, stop.clone());
        tokio::spawn(async move {
            serving.await;
            drop(guard);
        })
    }
}
