//! What runs on machines that were deployed: it reports its hardware, and its agent comes with the bundle in its user-data,
//! enrols, connects and beats.

use crate::Outcome;
use crate::maas_site::{Ground, Maas, clock};
use base64::Engine as _;
use proto::agent::v1 as wire;
use proto::agent::v1::from_agent::Message as Says;
use proto::agent::v1::to_agent::Message as Word;
use std::sync::Arc;
use std::time::Duration;
use testkit::agent_client::{Agent, Conversation, Dialer, WINDOW, der_of, wire_time};
use testkit::maas_sim::{FirstBoot, MaasSim};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

/// As agents are told to by default.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Reports of hardware after a boot, which a real machine makes every quarter of an hour.
const SYNC: Duration = Duration::from_secs(5);
const SYNCS: usize = 24;
/// What ends badly is tried again after this.
const PAUSE: Duration = Duration::from_secs(1);
const TRIES: usize = 10;

/// All of them.
pub struct Crew {
    boots: mpsc::UnboundedReceiver<FirstBoot>,
    address: std::net::SocketAddr,
    sim: Arc<MaasSim>,
    stop: CancellationToken,
}

impl Crew {
    pub fn of(maas: &Maas, ground: &Ground) -> Self {
        let (booted, boots) = mpsc::unbounded_channel();
        maas.sim.on_first_boot(move |boot| drop(booted.send(boot)));
        Self { boots, address: ground.agents, sim: maas.sim.clone(), stop: CancellationToken::new() }
    }

    /// Lets the agents of machines that boot come, for as long as it is waited for.
    pub async fn works(&mut self) {
        while let Some(boot) = self.boots.recv().await {
            tokio::spawn(reports(self.sim.clone(), boot.system_id.clone(), self.stop.clone()));
            tokio::spawn(live(self.address, boot, self.stop.clone()));
        }
        std::future::pending().await
    }

    pub async fn works_for(&mut self, span: Duration) {
        drop(timeout_at(Instant::now() + span, self.works()).await);
    }

    pub fn stop(&self) {
        self.stop.cancel();
    }
}

async fn reports(sim: Arc<MaasSim>, system_id: String, stop: CancellationToken) {
    for _ in 0..SYNCS {
        tokio::time::sleep(SYNC).await;
        if stop.is_cancelled() {
            return;
        }
        sim.sync(&system_id);
    }
}

#[allow(clippy::print_stderr, reason = "where errors of a program go")]
async fn live(address: std::net::SocketAddr, boot: FirstBoot, stop: CancellationToken) {
    for _ in 0..TRIES {
        match one_life(address, &boot, &stop).await {
            Ok(()) => return,
            Err(e) => eprintln!("    the agent of {}: {e}", boot.hostname),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Until it is told to stop.
async fn one_life(address: std::net::SocketAddr, boot: &FirstBoot, stop: &CancellationToken) -> Outcome<()> {
    let bundle = bundle_in(&boot.user_data).ok_or("there is no bundle in its user-data")?;
    let field = |name: &str| bundle.get(name).and_then(serde_json::Value::as_str).ok_or("not a bundle");
    let authority = der_of(field("authority_pem")?).ok_or("no authority")?;
    let dialer = Dialer { address, authority, clock: Arc::new(clock), window: WINDOW };
    let mac = boot.macs.first().ok_or("no card")?;
    let facts = wire::Facts {
        system_uuid: format!("4d570000-0000-4000-8000-{}", mac.replace(':', "")),
        serial_number: boot.serial.clone(),
        mac_addresses: boot.macs.clone(),
        hostname: boot.hostname.clone(),
        boot_id: boot.system_id.clone(),
        ..Default::default()
    };
    let agent = Agent::enrol_as(&dialer, field("token")?, facts.clone()).await?;
    let mut stream = agent.open(&dialer).await?;
    let hello = wire::Hello {
        epoch: agent.epoch,
        session: agent.session,
        agent_version: "0.1.0".to_owned(),
        facts: Some(facts),
        clock: Some(wire_time(clock())),
        running: Vec::new(),
    };
    stream.say(Says::Hello(hello)).await;
    let Some(Word::Welcome(welcome)) = stream.next().await? else { return Err("it was not made welcome".into()) };
    stream.say(Says::Confirm(wire::Confirm { session: welcome.session })).await;
    beat(stream, stop).await;
    Ok(())
}

async fn beat(mut stream: Conversation, stop: &CancellationToken) {
    let mut next = Instant::now();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep_until(next) => {
                next += HEARTBEAT;
                stream.beat(clock(), &[]).await;
            }
            word = stream.word() => match word {
                Ok(Some(Word::GoAway(_)) | None) | Err(_) => return,
                Ok(Some(_)) => {}
            }
        }
    }
}

/// The bundle that cloud-init writes into a file.
fn bundle_in(user_data: &[u8]) -> Option<serde_json::Value> {
    let text = std::str::from_utf8(user_data).ok()?;
    let after = text.split("millwright-bundle.json").nth(1)?;
    let content = after.lines().find_map(|line| line.trim().strip_prefix("content: "))?;
    let encoded: String = serde_json::from_str(content).ok()?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
    serde_json::from_slice(&bytes).ok()
}
