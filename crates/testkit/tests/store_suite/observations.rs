//! Observations beside machines, and the sweeps that keep them fresh.

use crate::fixture::{
    TestStore, labels, machine_id, make_steps, no_guard, on_every_store, on_threaded_stores, requested, requester,
    set_phase, started, succeeded, to_phase,
};
use domain::condition::ConditionType;
use domain::look::{Facts, Hardware, Look, Member, Workload, observe};
use domain::machine::{INSPECTED, Machine, MachineSpec, Phase};
use domain::observation::{Lane, Observation, STALE_AFTER};
use domain::run::RunChange;
use domain::{MachineId, Reason, RunId, Timestamp};
use futures::future::join_all;
use std::time::Duration;
use store::sweep::{self, Claim};
use store::{Ambient as _, Cause, Moved, Options, Store, Tx, TxResult, machine, observation, run};

fn answering(at: Timestamp) -> Look {
    let facts = Facts {
        serial_number: "S".into(),
        system_uuid: String::new(),
        powered: true,
        reachable: true,
        host_asked: true,
        disk_read: true,
        installed: Some("ubuntu \"24.04\"".into()),
        installing: None,
    };
    let (hardware, member) = (Hardware::Answered(facts), Member::NotJoined);
    Look { at, source: "sim".into(), hardware, member, workload: Workload::Drained }
}

fn silent(at: Timestamp) -> Look {
    Look { hardware: Hardware::no_answer("näh"), ..answering(at) }
}

fn record(tx: &mut Tx<'_>, id: &MachineId, look: &Look) -> TxResult<Machine> {
    let there = machine::get_for_update(tx, id)?.expect("is there");
    observation::record(tx, &there, &observe(&there, look), "reconciler")?;
    Ok(machine::get(tx, id)?.expect("is there"))
}

async fn seen(store: &TestStore, id: &str, look: Look) -> Machine {
    let row = machine_id(id);
    store.put(id, move |tx| record(tx, &row, &look)).await.expect("records")
}

fn status(o: &Observation, kind: ConditionType) -> Option<(bool, bool)> {
    o.get(kind).map(|o| (o.condition.status, o.confirmed))
}

on_every_store!(an_observation_is_read_with_its_machine_and_raises_no_version, |store| async move {
    let registered = store.register("m-1").await;
    assert_eq!(registered.observation, None);
    store.clock.skip(Duration::from_secs(5));
    let look = answering(store.clock.now());
    let machine = seen(&store, "m-1", look.clone()).await;
    assert_eq!((machine.version, machine.updated_at), (registered.version, registered.updated_at));
    let expected = observe(&registered, &look);
    let read = machine.observation.clone().expect("observed");
    assert!(read.same(&expected));
    assert_eq!((read.conditions, read.last_seen, read.observed_at), (expected.conditions, Some(look.at), look.at));
    assert_eq!(Machine { observation: None, ..machine }, registered, "and nothing else has changed");
    let filter = machine::FILTER.parse("").expect("parses");
    let listed = store.read(move |tx| machine::list(tx, &filter, "", 10)).await.expect("lists");
    assert_eq!(listed[0].observation.as_ref().map(|o| o.facts.clone()), Some(expected.facts));
    // the way through a row: what is silent, kept, and told
    let look = silent(store.clock.now());
    let o = seen(&store, "m-1", look).await.observation.expect("observed");
    assert_eq!((o.version, o.lane, o.trouble.expect("told").message.as_str()), (2, Lane::Slow, "näh"));
    assert_eq!(o.conditions[0].condition.kind, ConditionType::Reachable);
    assert!(!o.conditions[0].confirmed && o.conditions[0].condition.status);
});

on_every_store!(each_flip_is_one_row_under_the_machines_history, |store| async move {
    store.register("m-1").await;
    let before = store.head().await;
    let at = store.clock.now();
    seen(&store, "m-1", answering(at)).await;
    let flips = |rows: Vec<store::LogRow>| -> Vec<String> {
        rows.into_iter().map(|r| format!("{} {} {} {}", r.entity_id, r.from_state, r.to_state, r.version)).collect()
    };
    let first = store.log_after(before).await;
    for row in &first {
        assert_eq!((row.entity_kind.as_str(), row.subject.as_str()), ("condition", "m-1"));
        assert_eq!(
            (row.trigger.as_str(), row.owner.as_str(), row.actor.as_str()),
            ("observed", "reconciler", "reconciler")
        );
    }
    assert_eq!(first[1].metadata, r#"{"reason":"Answers","source":"sim"}"#);
    let up = ["m-1/Reachable False True 1", "m-1/BMCReachable False True 1", "m-1/Provisioned False True 1"];
    assert_eq!(flips(first), up);
    let head = store.head().await;
    let silent = silent(at);
    seen(&store, "m-1", silent.clone()).await;
    let down = ["m-1/BMCReachable True False 2", "m-1/Degraded False True 2"];
    assert_eq!(flips(store.log_after(head).await), down, "what was not seen has not flipped");
    let head = store.head().await;
    seen(
        &store,
        "m-1",
        Look {
            hardware: Hardware::refused(domain::stage::FailureClass::Transient, domain::Reason::ProviderRefused, "x"),
            ..silent
        },
    )
    .await;
    assert_eq!(store.log_after(head).await, [], "another reason is no flip");
});

// the fold of a run, its events and its feed know nothing of conditions
on_every_store!(runs_fold_as_if_nobody_had_looked, |store| async move {
    store.register("m-1").await;
    let id = store.request("m-1", &["a"]).await;
    seen(&store, "m-1", answering(store.clock.now())).await;
    store.change(&id, vec![RunChange::Started, started("a")]).await.expect("changes");
    seen(&store, "m-1", silent(store.clock.now())).await;
    store.change(&id, vec![succeeded("a")]).await.expect("changes");
    let (run, head) = (id.clone(), store.head().await);
    assert_eq!(store.read(move |tx| run::check_fold(tx, &run)).await, Ok(Ok(())));
    let events = store.read(move |tx| run::events_after(tx, &id, 0, head)).await.expect("reads");
    assert_eq!(events.len(), 4);
    let feed = store::Feed::new(store.store.clone()).await.expect("begins");
    let (events, up_to) = feed.after(0).await.expect("reads");
    assert_eq!((events.iter().filter(|e| e.run.is_some()).count(), up_to), (4, head));
});

on_every_store!(an_old_observation_does_not_overwrite_a_newer_one, |store| async move {
    let old = store.register("m-1").await;
    let look = answering(store.clock.now());
    let after = seen(&store, "m-1", look.clone()).await;
    let stale = move |tx: &mut Tx<'_>| {
        let there = Machine { observation: Some(Observation { version: 7, ..observe(&old, &look) }), ..old.clone() };
        observation::record(tx, &there, &observe(&there, &look), "reconciler")
    };
    assert_eq!(store.put("m-1", stale).await.map_err(|e| e.reason), Err(Reason::Contention));
    assert_eq!(
        store.machine("m-1").await.and_then(|m| m.observation).map(|o| o.version),
        after.observation.map(|o| o.version)
    );
});

// G-15-11: an update with a version, and a run's hold, against an observer that never rests
on_threaded_stores!(observers_make_nobody_lose, |store| async move {
    let mut last = store.register("m-1").await;
    let look = {
        let store = &store;
        async move {
            for n in 0..60 {
                let at = store.clock.now();
                seen(store, "m-1", if n % 2 == 0 { answering(at) } else { silent(at) }).await;
            }
        }
    };
    let update = async {
        for n in 0..30 {
            let m = last.clone();
            let run = RunId::generate(store.clock.uuid());
            last = store
                .put("m-1", move |tx| {
                    let there = machine::get_for_update(tx, &m.id)?.expect("is there");
                    assert_eq!(there.version, m.version, "nobody else raises it");
                    let labels = labels(&[("n", &n.to_string())]);
                    let updated = machine::update_spec(tx, &m, &MachineSpec::default(), &labels)?;
                    let change = requested("m-1", run.as_str(), &["a"]);
                    run::insert(tx, &run, &change, &make_steps(&["a"]), &requester())?;
                    machine::set_hold(tx, &updated, Some(&run), &[])?;
                    let mut held = run::get(tx, &run)?.expect("is there");
                    let finished = RunChange::Finished { phase: domain::run::RunPhase::Canceled, error: None };
                    run::change(tx, &mut held, &[finished], "tester")?;
                    let held = machine::get(tx, &m.id)?.expect("is there");
                    machine::set_hold(tx, &held, None, &[])?;
                    Ok(machine::get(tx, &m.id)?.expect("is there"))
                })
                .await
                .expect("is not refused");
        }
        last
    };
    let ((), last) = futures::join!(look, update);
    let end = store.machine("m-1").await.expect("is there");
    assert_eq!((end.version, end.labels), (last.version, labels(&[("n", "29")])));
    assert_eq!(end.observation.expect("observed").version, 60, "and every observation is there");
});

on_every_store!(the_proof_of_manageability_is_the_reconcilers_edge, |store| async move {
    let before = store.register("m-1").await;
    let ready = |cause: Cause| {
        let m = before.clone();
        move |tx: &mut Tx<'_>| machine::set_phase(tx, &m, &to_phase(&m, Phase::Ready), &cause, no_guard)
    };
    let refused = store.put("m-1", ready(Cause::executor("x", INSPECTED, ""))).await.map_err(|e| e.reason);
    assert_eq!(refused, Err(Reason::NotYourTransition));
    let moved = store.put("m-1", ready(Cause::reconciler("reconciler", INSPECTED, ""))).await;
    assert_eq!(moved, Ok(Moved::Moved));
    let after = store.machine("m-1").await.expect("is there");
    assert_eq!((after.phase, after.phase_set_by.as_str()), (Phase::Ready, "reconciler"));
});

async fn claim(store: &Store, lane: Lane, after: u64, by: &'static str) -> Claim {
    let stale_after = Duration::from_secs(40);
    let claim = move |tx: &mut Tx<'_>| sweep::claim(tx, lane, after, by, stale_after);
    store.write(&crate::fixture::tester(), "sweeps", claim).await.expect("claims")
}

on_every_store!(a_round_is_claimed_once, |store| async move {
    assert_eq!(store.read(|tx| sweep::get(tx, Lane::Quick)).await, Ok(None));
    for round in 0..5 {
        let claims = join_all(["a", "b", "c"].map(|by| claim(&store, Lane::Quick, round, by))).await;
        let taken = claims.iter().filter(|c| **c == Claim::Taken { round: round + 1 }).count();
        assert_eq!((taken, claims.iter().filter(|c| **c == Claim::Lost).count()), (1, 2));
    }
    assert_eq!(claim(&store, Lane::Slow, 0, "a").await, Claim::Taken { round: 1 }, "each lane has its own");
    assert_eq!(claim(&store, Lane::Quick, 3, "late").await, Claim::Lost);
});

on_every_store!(only_the_holder_of_a_round_beats_and_ends_it, |store| async move {
    claim(&store, Lane::Quick, 0, "a").await;
    let row = store.read(|tx| sweep::get(tx, Lane::Quick)).await.expect("reads").expect("is there");
    assert_eq!((row.round, row.beats, row.sweeper.as_str(), row.finished_at, row.swept_at), (1, 0, "a", None, None));
    assert_eq!(store.put("s", |tx| sweep::beat(tx, Lane::Quick, 1)).await, Ok(true));
    store.clock.skip(Duration::from_secs(3));
    assert_eq!(store.put("s", |tx| sweep::finish(tx, Lane::Quick, 1, true)).await, Ok(true));
    let ended = store.read(|tx| sweep::get(tx, Lane::Quick)).await.expect("reads").expect("is there");
    assert_eq!((ended.beats, ended.swept_at), (1, Some(row.started_at)));
    assert!(ended.finished_at > ended.swept_at);
    assert_eq!(store.put("s", |tx| sweep::finish(tx, Lane::Quick, 1, true)).await, Ok(false), "once");
    // one that did not see everything confirms nothing
    assert_eq!(claim(&store, Lane::Quick, 1, "b").await, Claim::Taken { round: 2 });
    assert_eq!(store.put("s", |tx| sweep::beat(tx, Lane::Quick, 1)).await, Ok(false), "taken over");
    store.put("s", |tx| sweep::finish(tx, Lane::Quick, 2, false)).await.expect("ends");
    let cut = store.read(|tx| sweep::get(tx, Lane::Quick)).await.expect("reads").expect("is there");
    assert_eq!((cut.swept_at, cut.finished_at.is_some()), (ended.swept_at, true));
});

on_every_store!(a_sweep_freshens_the_machines_of_its_lane, |store| async move {
    for id in ["m-1", "m-2", "m-3"] {
        store.register(id).await;
    }
    let at = store.clock.now();
    seen(&store, "m-1", answering(at)).await;
    seen(&store, "m-2", silent(at)).await;
    let lane = |lane| store.read(move |tx| machine::list_lane(tx, lane, "", 10));
    let ids = |all: Vec<Machine>| all.into_iter().map(|m| m.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(lane(Lane::Quick).await.expect("lists")), ["m-1", "m-3"], "and those never looked at");
    assert_eq!(ids(lane(Lane::Slow).await.expect("lists")), ["m-2"]);
    let fresh = |m: Option<Machine>| m.and_then(|m| m.observation).expect("observed").fresh;
    assert_eq!(fresh(store.machine("m-1").await).stale_after, STALE_AFTER);
    store.clock.skip(Duration::from_secs(100));
    claim(&store, Lane::Quick, 0, "a").await;
    let row = store.read(|tx| sweep::get(tx, Lane::Quick)).await.expect("reads").expect("is there");
    let swept = row.started_at;
    assert_eq!(fresh(store.machine("m-1").await).swept_at, None, "not before it has ended");
    store.put("s", |tx| sweep::finish(tx, Lane::Quick, 1, true)).await.expect("ends");
    let (one, two) = (store.machine("m-1").await, store.machine("m-2").await);
    assert_eq!((fresh(one.clone()).swept_at, fresh(one.clone()).stale_after), (Some(swept), Duration::from_secs(40)));
    assert_eq!(fresh(two).swept_at, None);
    let shown = one.expect("is there").shown_conditions();
    assert!(shown.iter().all(|c| !c.stale) && shown[0].observed_at == Some(swept));
    store.clock.skip(Duration::from_secs(41));
    assert!(store.machine("m-1").await.expect("is there").shown_conditions()[0].stale);
});

on_every_store!(what_changed_about_a_machine_is_worth_a_look, |store| async move {
    let mut changed = store.signals().machines();
    let m = store.register("m-1").await;
    assert_eq!(changed.try_recv().ok(), Some(machine_id("m-1")));
    let (row, again) = (m.clone(), m.clone());
    let spec = MachineSpec { rack: "r".into(), ..MachineSpec::default() };
    let update = move |tx: &mut Tx<'_>| machine::update_spec(tx, &row, &spec, &row.labels);
    let m = store.put("m-1", update).await.expect("updates");
    assert_eq!(changed.try_recv().ok(), Some(machine_id("m-1")));
    store.put("m-1", move |tx| machine::update_spec(tx, &again, &again.spec, &again.labels)).await.expect("the same");
    assert!(changed.try_recv().is_err(), "nothing has changed");
    let moved = store.put("m-1", |tx| set_phase(tx, &machine_id("m-1"), Phase::Ready)).await;
    assert_eq!(moved, Ok(Moved::Moved));
    assert!(changed.try_recv().is_err(), "an operator's word changes nothing that a look would show");
    for to in [Phase::Rma, Phase::Ready] {
        assert_eq!(store.put("m-1", move |tx| set_phase(tx, &machine_id("m-1"), to)).await, Ok(Moved::Moved));
        assert_eq!(changed.try_recv().ok(), Some(machine_id("m-1")), "{to}: it is looked at no more, and again");
    }
    let run = store.request("m-1", &["a"]).await;
    let hold = move |tx: &mut Tx<'_>| {
        let m = machine::get_for_update(tx, &machine_id("m-1"))?.expect("is there");
        machine::set_hold(tx, &m, Some(&run), &[])
    };
    store.put("m-1", hold).await.expect("holds");
    assert!(changed.try_recv().is_err(), "a run has it");
    let let_go = |tx: &mut Tx<'_>| {
        let m = machine::get_for_update(tx, &machine_id("m-1"))?.expect("is there");
        machine::set_hold(tx, &m, None, &[])
    };
    store.put("m-1", let_go).await.expect("lets go");
    assert_eq!(changed.try_recv().ok(), Some(machine_id("m-1")));
    seen(&store, "m-1", answering(store.clock.now())).await;
    assert!(changed.try_recv().is_err(), "to be seen is no change");
    assert!(m.version > 1 && status(&observe(&m, &silent(m.created_at)), ConditionType::Reachable).is_none());
});

/// Takes a database back to what the first released version left.
async fn back_to_first_version(store: &TestStore) {
    let mut statements =
        "DROP VIEW node_state_logs; DROP TABLE observations; DROP TABLE sweeps; DROP TABLE audit; DROP INDEX idempotency_by_age;".to_owned();
    statements.push_str("DROP INDEX runs_by_customer; ALTER TABLE runs DROP COLUMN customer_id; ALTER TABLE transitions DROP COLUMN customer_id;");
    for column in ["customer_id", "state", "version", "created_by", "expires_at", "revoked_at", "revoked_by"] {
        statements.push_str(&format!("ALTER TABLE tokens DROP COLUMN {column};"));
    }
    for table in ["node_claims", "site_sights", "maas_identifiers", "maas_machines", "sites"] {
        statements.push_str(&format!("DROP TABLE {table};"));
    }
    statements.push_str("DROP VIEW node_onboardings; DROP VIEW node_decommissions;");
    for table in ["task_output", "tasks", "jobs", "agent_authority", "bootstrap_tokens", "agents", "nodes"] {
        statements.push_str(&format!("DROP TABLE {table};"));
    }
    for table in
        ["findings", "images", "boot_nodes", "install_orders", "boot_workflows", "holds", "pins", "credentials"]
    {
        statements.push_str(&format!("DROP TABLE {table};"));
    }
    statements.push_str("DROP INDEX machines_by_credentials; DROP INDEX machine_identifiers_folded;");
    statements.push_str("DELETE FROM schema_migrations WHERE version > 1");
    match &store.options {
        Options::Memory => panic!("it ends with its store"),
        Options::Sqlite(path) => {
            let path = path.clone();
            let undo = move || rusqlite::Connection::open(path).and_then(|db| db.execute_batch(&statements));
            tokio::task::spawn_blocking(undo).await.expect("no panic").expect("undoes");
        }
        Options::Postgres(config) => {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connects");
            let connection = tokio::spawn(connection);
            client.batch_execute(&statements).await.expect("undoes");
            drop(client);
            connection.await.expect("no panic").expect("closes");
        }
    }
}

on_threaded_stores!(an_upgrade_from_the_first_version_keeps_what_is_there, |store| async move {
    store.register("m-1").await;
    let moved = store.put("m-1", |tx| set_phase(tx, &machine_id("m-1"), Phase::Ready)).await;
    assert_eq!(moved, Ok(Moved::Moved));
    let before = store.machine("m-1").await;
    let run = store.request("m-1", &["a"]).await;
    let log = store.log().await;
    store.store.close();
    back_to_first_version(&store).await;
    let upgraded = store.beside().await;
    assert_eq!((upgraded.machine("m-1").await, upgraded.log().await), (before, log));
    assert_eq!(upgraded.run(&run).await.version, 1);
    let look = answering(upgraded.clock.now());
    assert!(seen(&upgraded, "m-1", look).await.observation.is_some());
});
