//! A fleet behind one responder: after the first contact a sweep is one question for each machine, and nothing is left
//! open when it has passed. `MILLWRIGHT_REDFISH_SYSTEMS` sets how many machines (default 300).

use crate::fixture::{adapter, login, options, patient, until};
use futures::StreamExt as _;
use provider::{Bmc as _, BmcState, ProviderResult};
use redfish::{Redfish, Timeouts};
use std::time::Duration;
use testkit::redfish_responder::Responder;

const AT_A_TIME: usize = 64;

async fn sweep(fleet: &[Redfish]) -> Vec<ProviderResult<BmcState>> {
    futures::stream::iter(fleet.iter().map(Redfish::state)).buffered(AT_A_TIME).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_of_a_fleet_is_one_question_for_each_machine() {
    let systems = std::env::var("MILLWRIGHT_REDFISH_SYSTEMS").ok().and_then(|n| n.parse().ok()).unwrap_or(300_usize);
    let mut many = options();
    many.systems = systems;
    let responder = Responder::start(many).await;
    let idle = Timeouts { idle: Duration::from_millis(500), ..patient() };
    let fleet: Vec<Redfish> = (1..=systems).map(|n| adapter(&responder.endpoint(n), login(), idle)).collect();
    for round in 0..3 {
        let (before, begun) = (responder.questions(), tokio::time::Instant::now());
        for (number, state) in sweep(&fleet).await.into_iter().enumerate() {
            let serial = state.unwrap_or_else(|e| panic!("system {}: {e}", number + 1)).serial_number;
            assert_eq!(serial, format!("SN{:06}", number + 1), "each is itself");
        }
        let asked = usize::try_from(responder.questions() - before).expect("a count");
        println!("round {round}: {systems} systems, {asked} questions, {:?}", begun.elapsed());
        assert_eq!(asked, if round == 0 { 4 * systems } else { systems }, "round {round}");
    }
    assert_eq!(responder.open_sessions(), systems, "one session for each");
    until("all connections are closed", || async { responder.faults.open() == 0 }).await;
}
