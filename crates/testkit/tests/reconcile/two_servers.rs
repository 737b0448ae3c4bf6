//! Several servers on one PostgreSQL: one of them sweeps, and one that dies is replaced.

use crate::fixture::{Probe, log, probed, swept};
use domain::machine::Phase;
use domain::observation::Lane;
use reconcile::{Reconciler, ReconcilerOptions, SiteReach};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::{Ambient, Caller, Options, Store, sweep};
use testkit::ambient::VirtualAmbient;
use testkit::fleet::{Database, Fleet, admin, eventually, quick};
use testkit::pretend_maas::{PretendClients, PretendMaas};

const PERIOD: Duration = Duration::from_millis(200);

fn options(name: &str) -> ReconcilerOptions {
    ReconcilerOptions { period: PERIOD, timeout: Duration::from_millis(100), ..ReconcilerOptions::new(name) }
}

/// Two stores on one database, with ten machines.
async fn two_stores() -> [Store; 2] {
    let stores = tokio::task::spawn_blocking(|| {
        let config = testkit::postgres::database();
        let ambient: Arc<dyn Ambient> = VirtualAmbient::on(None, 1);
        ["a", "b"].map(|_| Store::open(&Options::Postgres(Box::new(config.clone())), ambient.clone()).expect("opens"))
    });
    let stores = stores.await.expect("stores");
    let fleet = Fleet::new(Database::Memory, 1);
    let engine = fleet.engine(quick("unused"), None);
    let service = service::Service::new(
        stores[0].clone(),
        engine,
        provider::Providers::default(),
        service::CallerLimits::default(),
    )
    .await
    .expect("a service");
    for n in 0..10 {
        service.register_machine(&admin(), probed(&format!("m-{n}"))).await.expect("registers");
    }
    stores
}

async fn round(store: &Store) -> u64 {
    swept(store, Lane::Quick).await.map_or(0, |s| s.round)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_them_sweeps_in_each_period() {
    let stores = two_stores().await;
    let probe = Arc::new(Probe::default());
    let start = |n: usize, name| Reconciler::start(&stores[n], probe.providers(), options(name));
    let reconcilers = [start(0, "a"), start(1, "b")];
    let mut starts = BTreeMap::new();
    eventually("six rounds", || {
        let store = &stores[0];
        async move { swept(store, Lane::Quick).await }
    })
    .await;
    while starts.len() < 6 {
        if let Some(row) = swept(&stores[0], Lane::Quick).await {
            starts.insert(row.round, row.started_at);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for reconciler in &reconcilers {
        reconciler.stop().await;
    }
    let pairs: Vec<_> = starts.iter().zip(starts.iter().skip(1)).collect();
    for ((before, from), (round, to)) in pairs {
        let periods = u32::try_from(round - before).expect("few");
        assert!(to.since(*from) >= PERIOD * periods, "round {round} began {:?} after round {before}", to.since(*from));
    }
    let row = swept(&stores[0], Lane::Quick).await.expect("swept");
    for n in 0..10 {
        let looks = u64::try_from(probe.looks(&format!("m-{n}"))).expect("few");
        // the last round may have been cut short by the stop
        assert!(looks == row.round || looks + 1 == row.round, "{looks} looks in {} rounds", row.round);
    }
    // and everything was done once
    let log = log(&stores[1]).await;
    assert_eq!(log.iter().filter(|r| r.trigger == "inspected").count(), 10);
    let flips: Vec<&str> = log.iter().filter(|r| r.entity_kind == "condition").map(|r| r.entity_id.as_str()).collect();
    assert_eq!(flips.len(), 20, "{flips:?}");
    stores.iter().for_each(Store::close);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_goes_on_when_one_stops() {
    let stores = two_stores().await;
    let probe = Arc::new(Probe::default());
    let start = |n: usize, name| Reconciler::start(&stores[n], probe.providers(), options(name));
    let (a, b) = (start(0, "a"), start(1, "b"));
    eventually("a round", || async { (round(&stores[0]).await >= 1).then_some(()) }).await;
    a.stop().await;
    let at = round(&stores[0]).await;
    eventually("three more rounds", || async { (round(&stores[0]).await >= at + 3).then_some(()) }).await;
    b.stop().await;
    assert_eq!(swept(&stores[0], Lane::Quick).await.expect("swept").sweeper, "b");
    stores.iter().for_each(Store::close);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_died_in_the_middle_is_taken_over() {
    let stores = two_stores().await;
    let claim = |tx: &mut store::Tx<'_>| sweep::claim(tx, Lane::Quick, 0, "dead", Duration::from_secs(90));
    let claimed = stores[0].write(&Caller::new("dead"), "s", claim).await.expect("claims");
    assert_eq!(claimed, sweep::Claim::Taken { round: 1 });
    let probe = Arc::new(Probe::default());
    let b = Reconciler::start(&stores[1], probe.providers(), options("b"));
    let row = eventually("it is taken over", || async {
        swept(&stores[0], Lane::Quick).await.filter(|row| row.sweeper == "b" && row.swept_at.is_some())
    })
    .await;
    assert!(row.round >= 2);
    b.stop().await;
    let id = domain::MachineId::from_text("m-3");
    let m = stores[0].read(move |tx| store::machine::get(tx, &id)).await.expect("reads").expect("is there");
    assert_eq!(m.phase, Phase::Ready);
    stores.iter().for_each(Store::close);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_them_watches_a_site() {
    let stores = two_stores().await;
    let vault = testkit::fleet::vault(&stores[0]);
    let fleet = Fleet::new(Database::Memory, 1);
    let (engine, limits) = (fleet.engine(quick("unused"), None), service::CallerLimits::default());
    let providers = provider::Providers::default();
    let service = service::Service::with_vault(stores[0].clone(), engine, providers, limits, vault).await;
    let service = service.expect("a service");
    let (name, kind, api_key) = ("key".into(), "maas".into(), domain::Secret::new("a:b:c"));
    let key = service::NewCredential { name, kind, api_key, ..service::NewCredential::default() };
    service.set_credential(&admin(), key).await.expect("a key");
    let mut site = testkit::sites::site("lab", "key");
    site.policy.poll = Duration::from_secs(1);
    service.create_site(&admin(), site).await.expect("a site");
    // each server has a MAAS of its own to ask, so that it shows who does
    let maas = [PretendMaas::new(), PretendMaas::new()];
    let start = |n: usize, name: &str| {
        let keyring = Arc::new(testkit::fleet::vault(&stores[n]));
        let reach = SiteReach { keyring, clients: PretendClients::with(&[("lab", &maas[n])]) };
        let options = ReconcilerOptions { sites: Some(reach), ..options(name) };
        Reconciler::start(&stores[n], provider::Providers::default(), options)
    };
    let reconcilers = [start(0, "a"), start(1, "b")];
    let mut asked = [0, 0];
    eventually("one of them to have looked six times", || {
        for (count, maas) in asked.iter_mut().zip(&maas) {
            *count += maas.asked().iter().filter(|what| *what == "events").count();
        }
        let done = asked.iter().any(|count| *count >= 6);
        async move { done.then_some(()) }
    })
    .await;
    // both may begin at once: then one finds that the other was faster, and leaves it alone
    assert!(asked.iter().any(|count| *count <= 1), "{asked:?}");
    for reconciler in reconcilers {
        reconciler.stop().await;
    }
}
