//! Clients that keep asking, whatever happens below, and repeat what was not acknowledged until it is. In the
//! end there must be exactly what they were told.

use crate::fixture::{REPAVE, Told, Witness, each_once, move_to, register, run_of, told};
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_status::Phase;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::fleet::eventually;
use testkit::server::TestServer;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

#[derive(Default)]
struct Counts {
    acknowledged: AtomicUsize,
    refused: AtomicUsize,
    ended: AtomicUsize,
}

pub struct Load {
    stop: CancellationToken,
    counts: Arc<Counts>,
    /// A machine and how often it was moved.
    movers: Vec<JoinHandle<(String, i64)>>,
    /// Machines, each repaved once.
    repavers: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    pub async fn on(server: &TestServer, movers: usize, repavers: usize) -> Self {
        let (stop, counts) = (CancellationToken::new(), Arc::new(Counts::default()));
        let mut load = Self { stop, counts, movers: Vec::new(), repavers: Vec::new() };
        for n in 0..movers {
            let (id, machines) = (format!("moved-{n}"), server.machines().await);
            register(machines.clone(), &id, &[]).await;
            let (stop, counts) = (load.stop.clone(), load.counts.clone());
            load.movers.push(tokio::spawn(async move {
                let mut moves = 0;
                for to in [Phase::Ready, Phase::Maintenance].into_iter().cycle() {
                    if stop.is_cancelled() {
                        break;
                    }
                    let key = format!("{id}-{moves}");
                    let ask = || {
                        let (mut machines, request) = (machines.clone(), move_to(&id, to, &key));
                        async move { machines.set_phase(request).await }
                    };
                    counts.until_done(&key, ask).await;
                    moves += 1;
                }
                (id, moves)
            }));
        }
        for n in 0..repavers {
            let (machines, runs) = (server.machines().await, server.runs().await);
            let (stop, counts) = (load.stop.clone(), load.counts.clone());
            load.repavers.push(tokio::spawn(async move {
                let mut repaved = Vec::new();
                while !stop.is_cancelled() {
                    let id = format!("repaved-{n}-{}", repaved.len());
                    counts.until_registered(&machines, &id).await;
                    let ask = || {
                        let (mut runs, request) = (runs.clone(), run_of(&id, "REPAVE", "r"));
                        async move { runs.start_run(request).await }
                    };
                    let run = counts.until_done(&id, ask).await.run_id;
                    eventually("the run ends", || async {
                        let request = pb::GetRunRequest { run_id: run.clone() };
                        match told(runs.clone().get_run(request).await, &run) {
                            Told::Done(run) => (run.phase() as i32 > pb::run::Phase::Running as i32).then_some(()),
                            _ => None,
                        }
                    })
                    .await;
                    counts.ended.fetch_add(1, Ordering::SeqCst);
                    repaved.push(id);
                }
                repaved
            }));
        }
        load
    }

    /// Waits for that much more to be acknowledged, and for a run to end.
    pub async fn some_more(&self, what: &str) {
        let now = || (self.counts.acknowledged.load(Ordering::SeqCst), self.counts.ended.load(Ordering::SeqCst));
        let before = now();
        eventually(what, || async { (now().0 >= before.0 + 40 && now().1 > before.1).then_some(()) }).await;
    }

    /// Waits for somebody to be refused.
    pub async fn a_refusal(&self) {
        let before = self.counts.refused.load(Ordering::SeqCst);
        eventually("somebody is refused", || async {
            (self.counts.refused.load(Ordering::SeqCst) > before).then_some(())
        })
        .await;
    }

    /// Ends it, and compares what was told with what is there.
    pub async fn finish(self, witness: &Witness, server: &TestServer) -> String {
        self.stop.cancel();
        for mover in self.movers {
            let (id, moves) = mover.await.expect("no panic");
            let (_, logged, audited) = witness.machine(&id).await;
            assert_eq!((logged, audited), (moves + 1, moves), "{id}: the log and the record, {moves} acknowledged");
        }
        let mut repaved = 0;
        for repaver in self.repavers {
            for id in repaver.await.expect("no panic") {
                let runs = witness.runs(&id).await;
                assert!(matches!(runs.as_slice(), [(_, phase)] if phase == "SUCCEEDED"), "{id}: {runs:?}");
                each_once(&server.fleet, &id, &REPAVE, "under load");
                repaved += 1;
            }
        }
        witness.check_log().await;
        let count = |n: &AtomicUsize| n.load(Ordering::SeqCst);
        let (acknowledged, refused) = (count(&self.counts.acknowledged), count(&self.counts.refused));
        format!("{acknowledged} calls acknowledged, {refused} refused and repeated, {repaved} machines repaved")
    }
}

impl Counts {
    /// The same request again and again, until it is acknowledged.
    async fn until_done<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        what: &str,
        mut ask: impl FnMut() -> F,
    ) -> T {
        loop {
            match told(ask().await, what) {
                Told::Done(done) => {
                    self.acknowledged.fetch_add(1, Ordering::SeqCst);
                    return done;
                }
                Told::NotDone | Told::Unknown => self.refused.fetch_add(1, Ordering::SeqCst),
                Told::Full => panic!("{what}: nothing is full"),
            };
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    async fn until_registered(
        &self,
        machines: &pb::machine_service_client::MachineServiceClient<testkit::server::Door>,
        id: &str,
    ) {
        let spec =
            pb::MachineSpec { provider: "sim".into(), target_cluster_ref: "cluster-a".into(), ..Default::default() };
        let labels = [("sim.latency_ms".to_owned(), "40".to_owned())].into();
        let machine = pb::Machine { machine_id: id.into(), labels, spec: Some(spec), ..Default::default() };
        self.until_done(id, || {
            let (mut machines, machine) = (machines.clone(), Some(machine.clone()));
            async move { machines.register_machine(pb::RegisterMachineRequest { machine }).await }
        })
        .await;
    }
}
