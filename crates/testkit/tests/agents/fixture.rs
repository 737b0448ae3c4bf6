//! A site with its agents, on either database, and the small things most tests begin with.

use domain::NodeId;
use domain::finding::{Finding, FindingKind, FindingState};
use store::audit::Entry;
use testkit::agent_client::{Agent, Conversation};
use testkit::agent_site::AgentSite;
use testkit::fleet::{Database, Fleet};

/// Runs one body on both databases: `name::sqlite` and `name::postgres`.
macro_rules! on_both {
    ($name:ident, |$site:ident| $body:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn body($site: testkit::agent_site::AgentSite) {
                $body.await
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                body(crate::fixture::site(testkit::fleet::Database::Sqlite).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                body(crate::fixture::site(testkit::fleet::Database::Postgres).await).await;
            }
        }
    };
}
pub(crate) use on_both;

pub async fn fleet(database: Database) -> Fleet {
    // on a thread where blocking is allowed, and still on this runtime's clock
    tokio::task::spawn_blocking(move || Fleet::new(database, 1)).await.expect("a fleet")
}

pub async fn site(database: Database) -> AgentSite {
    AgentSite::start(fleet(database).await).await
}

/// A node in service, and its agent.
pub async fn enrolled(site: &AgentSite, name: &str) -> (NodeId, Agent) {
    let (node, token) = site.node(name).await;
    let agent = Agent::enrol(&site.dialer, &token).await.expect("enrols");
    site.activate(&node).await;
    (node, agent)
}

/// The same, connected.
pub async fn connected(site: &AgentSite, name: &str) -> (NodeId, Agent, Conversation) {
    let (node, mut agent) = enrolled(site, name).await;
    let stream = agent.connect(&site.dialer).await.expect("connects");
    (node, agent, stream)
}

/// Why a stream ended.
pub async fn reason_of_end(stream: &mut Conversation) -> String {
    stream.ended().await.map_or("nothing was said".to_owned(), |away| away.reason)
}

pub async fn finding(site: &AgentSite, node: &NodeId, kind: FindingKind) -> Option<Finding> {
    let subject = node.to_string();
    let open = site.fleet.store.read(move |tx| store::finding::unresolved(tx, &subject)).await.expect("reads");
    open.into_iter().find(|finding| finding.kind == kind && finding.state != FindingState::Resolved)
}

/// What was refused to agents, newest first.
pub async fn refusals(site: &AgentSite) -> Vec<Entry> {
    let filter = store::audit::FILTER.parse("outcome = \"refused\"").expect("a filter");
    site.fleet.store.read(move |tx| store::audit::list(tx, &filter, None, 1000)).await.expect("reads")
}

/// The stable reason of a refusal.
pub fn reason(status: &tonic::Status) -> String {
    use tonic_types::StatusExt as _;
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}
