//! How sites are reached: for jobs and runs, whose calls end before the engine gives them up; and for those who look at
//! everything, who may take longer and keep nobody waiting.

use crate::config::Config;
use maas::{Clients, Options};
use provider::MaasClients;
use service::Vault;
use service::agents::LateBundles;
use std::sync::Arc;
use std::time::Duration;
use workflow::job::{Hands, NoAllocations};

/// Clients whose calls end within the engine's.
pub fn working(config: &Config) -> Arc<dyn MaasClients> {
    let call = Duration::from_secs(config.engine.call_timeout_seconds) * 8 / 10;
    let options = Options::default();
    Arc::new(Clients::new(Options {
        connect: options.connect.min(call / 3),
        read: options.read.min(call),
        list: options.list.min(call),
        change: options.change.min(call),
        power_now: options.power_now.min(call),
        turn: options.turn.min(call),
        ..options
    }))
}

/// Clients of those who list and check whole sites.
pub fn observing() -> Arc<dyn MaasClients> {
    Arc::new(Clients::new(Options::default()))
}

/// What jobs reach outside the store with; and where their bundles and runs come from, once the service is there.
pub fn hands(working: Arc<dyn MaasClients>, vault: &Vault) -> (Hands, Arc<LateBundles>) {
    let bundles = Arc::<LateBundles>::default();
    let hands = Hands {
        maas: working,
        keyring: Arc::new(vault.clone()),
        bundles: bundles.clone(),
        runs: bundles.clone(),
        // nothing places anything on nodes yet
        allocations: Arc::new(NoAllocations),
    };
    (hands, bundles)
}
