//! Bounds, with the real adapters: one call at a time to one BMC, a queue that ends, a breaker that opens and finds out
//! by itself, and a few dead ones that do not hold up the many.

use crate::ground::{Ground, PASSWORD, impatient, options, until};
use datacenter::{Datacenter, Options};
use domain::Reason;
use domain::machine::{Machine, MachineSpec};
use futures::StreamExt as _;
use provider::{Inspect as _, Providers, Target};
use reconcile::{Reconciler, ReconcilerOptions};
use service::{CallerLimits, NewMachine, Service};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testkit::fleet::{Database, Fleet, admin, quick, vault};
use testkit::http_faults::Fault;
use testkit::keyring::MemoryKeyring;
use testkit::redfish_responder::{self, Responder};

#[tokio::test]
async fn many_callers_of_one_bmc_are_one_at_a_time() {
    let g = Ground::bmc_only(options()).await;
    g.look().await;
    g.responder.faults.arm("GET", "", Fault::Delay(Duration::from_millis(20)), usize::MAX);
    let opened = g.responder.faults.opened();
    let looks = futures::future::join_all((0..12).map(|_| g.dc.inspect(&g.target)));
    let seen = looks.await;
    assert!(seen.iter().all(Result::is_ok), "{seen:?}");
    assert!(g.responder.faults.disarm() >= 12);
    assert_eq!(g.responder.faults.opened(), opened, "one connection was enough for all of them");
}

#[tokio::test]
async fn a_queue_that_is_full_says_so_at_once() {
    let g = Ground::bmc_only(Options { queue: 4, call_timeout: Duration::from_secs(6), ..options() }).await;
    g.look().await;
    g.responder.faults.arm("GET", "/Systems/1", Fault::Hold, 1);
    // one is at it, four wait, five are told
    let looks = futures::future::join_all((0..10).map(|_| g.dc.inspect(&g.target))).await;
    let mut told = BTreeMap::new();
    for look in &looks {
        let reason = look.as_ref().err().map_or("answered", |e| e.reason().as_str());
        *told.entry(reason).or_insert(0) += 1;
    }
    assert_eq!(told, BTreeMap::from([("answered", 4), ("ENDPOINT_BUSY", 5), ("UNREACHABLE", 1)]));
    let busy = looks.iter().filter_map(|l| l.as_ref().err()).find(|e| e.reason() == Reason::EndpointBusy);
    assert!(busy.is_some_and(|e| e.to_string().contains("try again")), "{busy:?}");
    g.look().await;
}

#[tokio::test]
async fn a_dead_bmc_is_left_alone_and_found_again() {
    let rest = Duration::from_millis(300);
    let g = Ground::bmc_only(Options { silences: 2, rest, rest_max: rest, ..impatient() }).await;
    g.look().await;
    g.responder.faults.arm("", "", Fault::Hold, usize::MAX);
    let mut first = None;
    for _ in 0..2 {
        let away = g.dc.watch(&g.target).await.expect_err("silent");
        assert!(matches!(away.reason(), Reason::Unreachable | Reason::ProviderSilent), "{away}");
        first = Some(away);
    }
    assert_eq!(provider::Provider::resting(&g.dc), 1);
    let asked = g.responder.faults.hits();
    let work = g.dc.inspect(&g.target).await.expect_err("left alone");
    assert_eq!(work.reason(), Reason::CircuitOpen, "{work}");
    assert_eq!(g.dc.watch(&g.target).await.err(), first, "a sweep is told the same again");
    assert_eq!(g.responder.faults.hits(), asked, "it was not asked");
    g.responder.faults.disarm();
    let begun = tokio::time::Instant::now();
    while g.dc.inspect(&g.target).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is never found again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(provider::Provider::resting(&g.dc), 0);
}

/// Who gives up early says nothing about the BMC.
#[tokio::test]
async fn impatient_callers_do_not_make_a_bmc_dead() {
    let g = Ground::bmc_only(Options { silences: 1, ..options() }).await;
    g.look().await;
    for _ in 0..5 {
        g.responder.faults.arm("", "", Fault::Hold, usize::MAX);
        tokio::select! {
            () = until("it is asked", || g.responder.faults.hits() > 0) => {}
            answer = g.dc.inspect(&g.target) => panic!("answered: {answer:?}"),
        }
        g.responder.faults.disarm();
    }
    assert_eq!(provider::Provider::resting(&g.dc), 0);
    g.look().await;
}

/// BMCs that answer, and black holes that take a connection and never a word.
struct Rack {
    _alive: Responder,
    holes: Vec<std::net::TcpListener>,
    keyring: Arc<MemoryKeyring>,
    specs: Vec<(MachineSpec, bool)>,
}

impl Rack {
    async fn new(alive: usize, dead: usize) -> Self {
        let options = redfish_responder::Options { systems: alive, own_ports: true, ..Default::default() };
        let responder = Responder::start(options).await;
        let hole = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let holes: Vec<_> = (0..dead).map(|_| hole()).collect();
        let spec =
            |at: String| MachineSpec { bmc_endpoint: at, credentials_ref: "bmc".into(), ..MachineSpec::default() };
        let mut specs: Vec<_> = (1..=alive).map(|n| (spec(responder.endpoint(n)), true)).collect();
        for (n, hole) in holes.iter().enumerate() {
            let at = format!("http://{}", hole.local_addr().expect("an address"));
            // all over the fleet, the first of all among them
            specs.insert(n * (alive / dead.max(1)), (spec(at), false));
        }
        let keyring = Arc::new(MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD));
        Self { _alive: responder, holes, keyring, specs }
    }

    /// Fewer calls at a time than there are dead ones.
    fn provider(&self, silences: u32) -> Datacenter {
        let (rest, calls) = (Duration::from_secs(3600), self.holes.len() / 2);
        let bounds = Options { silences, rest, rest_max: rest, redfish_calls: calls, ..impatient() };
        Datacenter::new(bounds, self.keyring.clone())
    }

    /// Connections that the black holes have been given.
    fn fallen_in(&self) -> usize {
        let one = |hole: &std::net::TcpListener| {
            hole.set_nonblocking(true).expect("set");
            std::iter::from_fn(|| hole.accept().ok()).count()
        };
        self.holes.iter().map(one).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_dead_ones_do_not_starve_a_sweep() {
    let rack = Rack::new(475, 25).await;
    let dc = rack.provider(1);
    let targets: Vec<(Target, bool)> =
        rack.specs.iter().map(|(spec, alive)| (crate::ground::target(spec.clone()), *alive)).collect();
    for sweep in 1..=3 {
        let order = AtomicUsize::new(0);
        let looks = targets.iter().map(|(target, alive)| {
            let (dc, order) = (&dc, &order);
            async move {
                let answer = dc.watch(target).await;
                assert_eq!(answer.is_ok(), *alive, "sweep {sweep}: {answer:?}");
                (order.fetch_add(1, Ordering::AcqRel), *alive)
            }
        });
        // no more at a time than there are places, as sweeps do
        let looks = futures::stream::iter(looks).buffer_unordered(rack.holes.len() / 2);
        let done: Vec<(usize, bool)> = looks.collect().await;
        let answered = done.iter().filter(|(_, alive)| *alive).count();
        assert_eq!((answered, done.len()), (475, 500), "everybody was looked at");
        let fallen = rack.fallen_in();
        if sweep == 1 {
            assert!(fallen >= 25, "all the dead were asked: {fallen}");
            assert_eq!(provider::Provider::resting(&dc), 25);
        } else {
            assert_eq!(fallen, 0, "sweep {sweep}: none of the dead was asked again, and none held up another");
        }
    }
}

/// Through the reconciler and the store: what does not change is not written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweeps_that_find_the_same_write_nothing() {
    let rack = Rack::new(18, 4).await;
    let dc = Arc::new(rack.provider(2));
    let fleet = Fleet::new(Database::Memory, 1);
    let providers = || Providers::default().with("datacenter", dc.clone());
    let engine = fleet.engine_with(quick("test"), providers(), None);
    let (store, limits) = (fleet.store.clone(), CallerLimits::default());
    let service = Service::with_vault(store.clone(), engine, providers(), limits, vault(&store)).await.expect("starts");
    crate::ground::known(&service, &["bmc"]).await;
    for (n, (spec, _)) in rack.specs.iter().enumerate() {
        let spec = MachineSpec { provider: "datacenter".into(), ..spec.clone() };
        let machine = NewMachine { id: format!("m-{n:02}"), spec, ..NewMachine::default() };
        service.register_machine(&admin(), machine).await.expect("registers");
    }
    let period = Duration::from_millis(300);
    let _reconciler =
        Reconciler::start(&store, providers(), ReconcilerOptions { period, ..ReconcilerOptions::new("test") });
    let versions = || async {
        let mut all = BTreeMap::new();
        for n in 0..rack.specs.len() {
            let machine: Machine = service.get_machine(&admin(), &format!("m-{n:02}")).await.expect("is there");
            all.insert(machine.id.to_string(), machine.observation.as_ref().map_or(0, |o| o.version));
        }
        all
    };
    let everybody = rack.specs.len();
    let begun = tokio::time::Instant::now();
    while provider::Provider::resting(dc.as_ref()) < 4
        || versions().await.values().filter(|v| **v > 0).count() < everybody
    {
        assert!(begun.elapsed() < Duration::from_secs(90), "never all observed: {:?}", versions().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // from here on nothing changes, however often they are looked at
    let sweeps = || async {
        let lane = domain::observation::Lane::Slow;
        store.read(move |tx| store::sweep::get(tx, lane)).await.expect("reads").map_or(0, |sweep| sweep.round)
    };
    let after_two = |from: u64| async move {
        let begun = tokio::time::Instant::now();
        while sweeps().await < from + 2 {
            assert!(begun.elapsed() < Duration::from_secs(90), "no more sweeps");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    after_two(sweeps().await).await;
    let before = versions().await;
    after_two(sweeps().await).await;
    assert_eq!(versions().await, before, "the same trouble is not written again");
}
