//! Many machines: a request about one costs what it costs with one, and the list is as large as a real one's.

use crate::caller::{Caller, now};
use std::sync::Arc;
use std::time::Duration;
use testkit::maas_sim::{MaasSim, Options, Racked};
use tokio::time::Instant;

/// How many; `MAAS_SIM_MACHINES` takes any number.
fn count() -> usize {
    std::env::var("MAAS_SIM_MACHINES").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

fn mac(number: usize) -> String {
    let [_, _, _, _, _, a, b, c] = (number as u64).to_be_bytes();
    format!("52:54:00:{a:02x}:{b:02x}:{c:02x}")
}

/// Prints what was measured; judges what does not depend on the machine it runs on.
#[tokio::test]
async fn many_machines_are_listed_whole_and_found_at_once() {
    let sim = MaasSim::start(Options { time: Arc::new(now), ..Options::default() }).await;
    sim.resize_pxe("10.64.0.0/14");
    let caller = Caller::new(&sim);
    let somebody = sim.as_somebody();
    let machines = count();
    let began = Instant::now();
    for number in 0..machines {
        let bmc = format!("bmc-{number}");
        sim.rack(Racked::new(&mac(number), &bmc));
        let system_id = somebody.create(&format!("m{number}"), &mac(number), &bmc);
        somebody.commission(&system_id);
        somebody.deploy(&system_id, "noble");
    }
    let made = began.elapsed();
    let began = Instant::now();
    let list = caller.ask("GET", "machines/", &[]).await;
    let listed = began.elapsed();
    let again = Instant::now();
    let second = caller.ask("GET", "machines/", &[]).await;
    println!(
        "{machines} machines: made in {made:?}, listed in {listed:?} and then {:?}, {} bytes each",
        again.elapsed(),
        list.body.len() / machines
    );
    assert_eq!(list.json().as_array().map(Vec::len), Some(machines));
    assert_eq!(list.body, second.body);
    let each = list.body.len() / machines;
    assert!((8_000..14_000).contains(&each), "about 10 kB a machine, and not {each}");
    let mut addresses: Vec<String> = sim.machines().into_iter().flat_map(|m| m.addresses).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), machines, "no address twice");
    let found = caller.get(&format!("machines/?mac_address={}", mac(machines - 1))).await;
    assert_eq!(found[0]["hostname"], format!("m{}", machines - 1));
    assert_eq!(sim.calls()["GET machines"], 3);
    sim.advance(Duration::from_secs(60));
}
