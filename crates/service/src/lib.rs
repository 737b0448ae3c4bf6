//! Use cases: who asks, whether the request makes sense, then one transaction. Both doors open into
//! this crate and into nothing else.

mod access;
pub mod access_table;
mod act;
pub mod agents;
mod audit;
mod boot_identity;
mod boot_nodes;
mod booting;
mod bulk;
mod call;
mod change;
mod clusters;
mod credentials;
mod engine_admin;
mod events;
pub mod explain;
mod findings;
mod hardware;
mod images;
mod jobs;
mod kubeconfig;
mod logs;
mod looks;
mod lookup;
mod machines;
mod netboot_orders;
mod node_actions;
mod nodes;
mod onboarding;
mod page;
mod plans;
mod reimage;
mod report_tokens;
mod runs;
mod sealing;
mod secret_keys;
mod sight;
mod sightings;
mod site_check;
mod sites;
mod standing;
mod start_run;
pub mod states;
mod tasks;
mod tokens;
mod vault;
mod watch;
mod watch_boot_node;
mod watch_node;
mod why;
mod workflows;

use crate::sightings::Sightings;
use domain::agent::HeartbeatPolicy;
use domain::{Error, Reason, Timestamp};
use engine::Engine;
use provider::{MaasClients, NoMaas, Providers};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::token::revoked_by_row;
use store::{Feed, Store};
use tokio_util::sync::CancellationToken;
use workflow::NodePolicy;

pub use access::{Access, Principal, new_secret};
pub use act::{Acted, HardwareChange};
pub use boot_nodes::{BootNodeMove, BootNodeResult, BootNodeUpdate, NewBootNode};
pub use booting::{BootRequest, BootSetup, Booting, Ordered, Report, Reported};
pub use bulk::{Bulk, BulkOutcome, BulkResult};
pub use call::Call;
pub use change::check_key;
pub use clusters::{Drained, Evict};
pub use credentials::{CredentialView, KeyRotation, NewCredential};
pub use engine_admin::Described;
pub use hardware::{Discover, SetBoot};
pub use images::{ImageBytes, NewImage};
pub use jobs::{Begun, JobAct, JobActed, JobView, JobsOf, NewDecommission, Offer, StageView};
pub use machines::{MachineUpdate, NewMachine};
pub use netboot_orders::NetbootOrders;
pub use node_actions::{NodeAct, NodeActed};
pub use nodes::{IssuedNode, LifecycleView, NewNode, NodeView};
pub use onboarding::{NewOnboarding, Onboarded};
pub use page::{Page, PageRequest};
pub use runs::RunView;
pub use sealing::SecretKey;
pub use secret_keys::{Keep, SecretKeys};
pub use site_check::{Point as SitePoint, SiteCheck, Verdict as SiteVerdict};
pub use sites::{OnMaas, SiteMachine, SiteView};
pub use standing::CallerLimits;
pub use start_run::StartRun;
pub use tasks::NewOrder as NewTaskOrder;
pub use tokens::{CreatedToken, NewToken};
pub use vault::Vault;
pub use workflow::job::{MaasWish, PowerWish};
// what the doors show of the engine, by its own types
pub use store::LogRow;
pub use store::audit::Entry as AuditEntry;
pub use store::boot_node::Move as BootNodeRecord;
pub use store::execution::{Execution, attempt_of};
pub use store::switch::Freeze;
pub use store::task_output::Piece as TaskPiece;

/// Pause after the database failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The product's use cases over one store. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    engine: Engine,
    providers: Providers,
    feed: Arc<Feed>,
    access: Access,
    vault: Vault,
    image_bytes: OnceLock<Arc<dyn ImageBytes>>,
    /// After how long without a word an installation has failed; whoever judges that is set up with the same.
    silent_after: OnceLock<Duration>,
    /// What the site wishes of its nodes; whoever carries that out is set up with the same.
    nodes: OnceLock<NodePolicy>,
    /// How sites are reached.
    maas: OnceLock<Arc<dyn MaasClients>>,
    sightings: Sightings,
    agents: agents::Agents,
    /// For the metrics.
    counted: sight::Counted,
    /// Whoever asks for something new is told to come back: the server is about to stop.
    refusing: CancellationToken,
    /// Streams end, and say why, when the server stops.
    closing: CancellationToken,
}

impl Service {
    /// Without a key for credentials: whatever needs one is refused.
    pub async fn new(store: Store, engine: Engine, providers: Providers, limits: CallerLimits) -> Result<Self, Error> {
        let keys = SecretKeys::missing("this server has no key for credentials");
        let vault = Vault::new(store.clone(), keys);
        Self::with_vault(store, engine, providers, limits, vault).await
    }

    /// The providers have the same vault as their keyring.
    pub async fn with_vault(
        store: Store,
        engine: Engine,
        providers: Providers,
        limits: CallerLimits,
        vault: Vault,
    ) -> Result<Self, Error> {
        let feed = Feed::new(store.clone()).await?;
        tokio::spawn(feed.clone().tail());
        let access = Access::new(store.clone(), limits);
        let inner = Inner {
            store,
            engine,
            providers,
            feed,
            access,
            vault,
            image_bytes: OnceLock::new(),
            silent_after: OnceLock::new(),
            nodes: OnceLock::new(),
            maas: OnceLock::new(),
            sightings: Sightings::default(),
            agents: agents::Agents::default(),
            counted: sight::Counted::default(),
            refusing: CancellationToken::new(),
            closing: CancellationToken::new(),
        };
        let service = Self { inner: Arc::new(inner) };
        tokio::spawn(service.clone().follow_revocations());
        tokio::spawn(service.clone().write_sightings());
        Ok(service)
    }

    /// Learns of tokens that were revoked through another server: what they have open here must end.
    async fn follow_revocations(self) {
        let mut head = self.inner.feed.head();
        let mut cursor = head.look();
        loop {
            match self.inner.feed.after(cursor).await {
                Ok((events, next)) => {
                    events.iter().filter_map(|e| revoked_by_row(&e.row)).for_each(|id| self.access().revoked(&id));
                    if next > cursor {
                        cursor = next;
                        continue;
                    }
                }
                Err(e) => {
                    // also if nothing more is written: a revoked token's streams must not go on
                    tracing::warn!(error = %e, "looking for revoked tokens");
                    tokio::select! {
                        biased;
                        () = self.inner.closing.cancelled() => return,
                        () = tokio::time::sleep(LOOK_AGAIN) => continue,
                    }
                }
            }
            tokio::select! {
                biased;
                () = self.inner.closing.cancelled() => return,
                () = head.grew() => {}
            }
        }
    }

    /// Resolves when a stream of this caller must end, and says why.
    async fn over(&self, call: &Call) -> Error {
        tokio::select! {
            biased;
            () = self.inner.closing.cancelled() => watch::closing(),
            error = call.ended(|| self.now()) => error,
        }
    }

    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    pub fn now(&self) -> Timestamp {
        self.store().ambient().now()
    }

    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    pub fn access(&self) -> &Access {
        &self.inner.access
    }

    /// After how long without a word an installation is failed here; asked once, when the server starts.
    pub fn fails_silence_after(&self, span: Duration) {
        self.inner.silent_after.get_or_init(|| span);
    }

    fn silent_after(&self) -> Duration {
        self.inner.silent_after.get().copied().unwrap_or(domain::boot_node::SILENT_AFTER)
    }

    /// What the site wishes of its nodes; said once, when the server starts.
    pub fn keeps_nodes_by(&self, policy: NodePolicy) {
        self.inner.nodes.get_or_init(|| policy);
    }

    fn node_policy(&self) -> &NodePolicy {
        self.inner.nodes.get_or_init(NodePolicy::default)
    }

    /// How sites are reached; said once, when the server starts.
    pub fn reaches_sites_by(&self, clients: Arc<dyn MaasClients>) {
        self.inner.maas.get_or_init(|| clients);
    }

    fn maas_clients(&self) -> Arc<dyn MaasClients> {
        self.inner.maas.get_or_init(|| Arc::new(NoMaas)).clone()
    }

    fn heartbeat_policy(&self) -> HeartbeatPolicy {
        self.agent_setup().heartbeat
    }

    /// From here on new calls are refused, with a hint when to come back. Those in flight go on.
    pub fn refuse_calls(&self) {
        self.inner.refusing.cancel();
    }

    /// Whether a new call is taken.
    pub fn takes_calls(&self) -> Result<(), Error> {
        if self.inner.refusing.is_cancelled() {
            let message = "the server is shutting down; try again in a moment, or ask another one";
            return Err(Error::new(Reason::ShuttingDown, message));
        }
        Ok(())
    }

    /// Cancelled when new calls are refused.
    pub fn refusing(&self) -> CancellationToken {
        self.inner.refusing.clone()
    }

    /// Ends all streams: the server is about to stop.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }
}
