//! A stage of several parts: each is done once, whoever dies when.

use async_trait::async_trait;
use domain::stage::{StageDecl, Unwind};
use domain::{Error, ExecutionId, MachineId};
use engine::{Aborted, Acted, Engine, Event, Failure, JournalObserver, Look, Seen, StageCx, Work, Workflow};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use store::execution::{self, Execution, NewExecution, Status};
use store::{Caller, Store, Tx, TxResult};
use testkit::fleet::{Database, Fleet, eventually, quick};

const PARTS: u64 = 3;

/// What was done, in its order.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Vec<u64>>>);

struct Parts {
    world: World,
    decls: Vec<StageDecl>,
}

#[async_trait]
impl Work for Parts {
    fn stages(&self) -> &[StageDecl] {
        &self.decls
    }

    fn rack(&self) -> &str {
        ""
    }

    async fn look(&self, cx: &StageCx) -> Look {
        let done = self.world.0.lock().expect("a lock").len() as u64;
        if done == PARTS {
            return Seen::Done("all parts".to_owned()).into();
        }
        let facts = serde_json::json!({ "part": done + 1 });
        let seen = if cx.acted && cx.facts != facts { Seen::NextPart } else { Seen::Clear };
        Look { seen, output: Vec::new(), facts: Some(facts) }
    }

    async fn act(&self, cx: &StageCx) -> Acted {
        let part = cx.facts["part"].as_u64().expect("a part, stored before it is done");
        self.world.0.lock().expect("a lock").push(part);
        Acted::Yes
    }

    async fn abort(&self, _: &StageCx) -> Result<Aborted, Failure> {
        Ok(Aborted::Stopped)
    }

    async fn undo(&self, _: &StageCx) -> Result<(), Failure> {
        Ok(())
    }

    fn record(&self, _: &mut Tx<'_>, _: &[Event]) -> TxResult<()> {
        Ok(())
    }

    fn record_output(&self, _: &mut Tx<'_>, _: usize, _: &[(&'static str, Vec<u8>)]) -> TxResult<()> {
        Ok(())
    }
}

#[async_trait]
impl Workflow for World {
    fn name(&self) -> &'static str {
        "parts"
    }

    fn version(&self) -> u32 {
        1
    }

    async fn load(&self, _: &Store, _: &Execution) -> Result<Arc<dyn Work>, Error> {
        let decl = StageDecl {
            name: "several".to_owned(),
            kind: "several",
            timeout: Duration::from_secs(600),
            max_retries: 0,
            unwind: Unwind::RollForward,
            destructive: false,
        };
        Ok(Arc::new(Parts { world: self.clone(), decls: vec![decl] }))
    }

    fn record_ended_from_outside(&self, _: &mut Tx<'_>, _: &Execution, _: &str, _: &str) -> TxResult<()> {
        Ok(())
    }
}

/// Runs it with the server killed right after a journal entry, and started again; how many entries there were, and what was done.
async fn killed_after(entry: usize) -> (usize, Vec<u64>) {
    let fleet = Fleet::new(Database::Memory, 5);
    let world = World::default();
    let engine = |observer: Option<JournalObserver>| {
        let workflows: Vec<Arc<dyn Workflow>> = vec![Arc::new(world.clone())];
        Engine::new(fleet.store.clone(), quick("one"), workflows, observer)
    };
    let (entries, victim) = (Arc::new(AtomicUsize::new(0)), Arc::new(OnceLock::<Engine>::new()));
    let (count, target) = (entries.clone(), victim.clone());
    let observer: JournalObserver = Arc::new(move |_, _| {
        if count.fetch_add(1, Ordering::SeqCst) + 1 == entry {
            target.get().expect("set").kill();
        }
    });
    let first = engine(Some(observer));
    victim.set(first.clone()).ok().expect("set once");
    let id = ExecutionId::generate(fleet.ambient.uuid());
    let (inserted, machine) = (id.clone(), MachineId::from_text("m"));
    let new = move |tx: &mut Tx<'_>| {
        let start_within = Duration::from_secs(3600);
        let (workflow, subject) = ("parts", "s");
        let machine_id = &machine;
        execution::insert(
            tx,
            &NewExecution { id: &inserted, workflow, workflow_version: 1, subject, machine_id, start_within },
        )
    };
    fleet.store.write(&Caller::engine(), "m", new).await.expect("inserted");
    first.start().await.expect("starts");
    if entry != usize::MAX {
        let struck = || async { (entries.load(Ordering::SeqCst) >= entry).then_some(()) };
        eventually("the server dies", struck).await;
        engine(None).start().await.expect("starts again");
    }
    let ended = || async {
        let id = id.clone();
        let there = fleet.store.read(move |tx| execution::get(tx, &id)).await.expect("reads").expect("an execution");
        (there.status == Status::Done).then_some(())
    };
    eventually(&format!("it is done, killed after entry {entry}"), ended).await;
    let done = world.0.lock().expect("a lock").clone();
    (entries.load(Ordering::SeqCst), done)
}

#[tokio::test(start_paused = true)]
async fn every_part_is_done_once_in_its_order_whenever_a_server_dies() {
    let (entries, done) = killed_after(usize::MAX).await;
    assert_eq!(done, [1, 2, 3]);
    assert!(entries > 3, "each part is written down before it is done: {entries}");
    for entry in 1..=entries {
        let (_, done) = killed_after(entry).await;
        assert_eq!(done, [1, 2, 3], "killed after entry {entry}");
    }
}
