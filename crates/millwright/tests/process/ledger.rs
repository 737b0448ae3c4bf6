//! What the clients were told, and the check that it is so: after a crash of what was told since the last
//! one, and in the end of everything.

use crate::dice::now_micros;
use crate::load::get_run;
use crate::wire::Wire;
use futures::future::join_all;
use proto::baremetal::v1 as pb;
use proto::baremetal::v1::machine_service_client::MachineServiceClient;
use proto::baremetal::v1::run::Phase;
use proto::millwright::v1 as mw;
use proto::millwright::v1::token_service_client::TokenServiceClient;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tonic::Code;

/// A run as its client knows it.
#[derive(Clone, Debug)]
pub struct ToldRun {
    pub run_id: String,
    pub machine_id: String,
    pub version: u64,
    pub phase: Phase,
    /// When the client learned that it has ended.
    pub ended_at: Option<i64>,
    pub cancel_asked: bool,
}

/// A machine that only its client changes.
#[derive(Clone, Debug)]
pub struct ToldMachine {
    pub version: u64,
    pub phase: i32,
    pub count: String,
}

#[derive(Clone, Debug)]
pub struct ToldToken {
    pub secret: String,
    pub revoke_asked: bool,
    pub revoked: bool,
}

#[derive(Default)]
pub struct Book {
    /// By request id.
    pub runs: BTreeMap<String, ToldRun>,
    pub machines: BTreeMap<String, ToldMachine>,
    pub tokens: Vec<ToldToken>,
    /// What was written down since the last check.
    fresh_runs: Vec<String>,
    fresh_tokens: Vec<usize>,
}

#[derive(Default)]
pub struct Ledger(Mutex<Book>);

impl Ledger {
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what a server has said about a run. It never takes anything back.
    pub fn told_run(&self, request_id: &str, run: &pb::Run) {
        let mut book = self.book();
        let ended = matches!(run.phase(), Phase::Succeeded | Phase::Failed | Phase::Canceled);
        let new = ToldRun {
            run_id: run.run_id.clone(),
            machine_id: run.machine_id.clone(),
            version: run.version,
            phase: run.phase(),
            ended_at: ended.then(now_micros),
            cancel_asked: false,
        };
        assert_eq!(run.request_id, request_id, "{run:?}");
        let old = book.runs.entry(request_id.to_owned()).or_insert_with(|| new.clone());
        follows(request_id, old, run);
        let at = old.ended_at.or(new.ended_at);
        *old = ToldRun { ended_at: at, cancel_asked: old.cancel_asked, ..new };
        book.fresh_runs.push(request_id.to_owned());
    }

    pub fn asks_to_cancel(&self, request_id: &str) {
        self.book().runs.get_mut(request_id).expect("it was started").cancel_asked = true;
    }

    pub fn told_machine(&self, id: &str, machine: ToldMachine) {
        self.book().machines.insert(id.to_owned(), machine);
    }

    pub fn told_token(&self, secret: String) -> usize {
        let mut book = self.book();
        book.tokens.push(ToldToken { secret, revoke_asked: false, revoked: false });
        let n = book.tokens.len() - 1;
        book.fresh_tokens.push(n);
        n
    }

    pub fn asks_to_revoke(&self, n: usize) {
        self.book().tokens[n].revoke_asked = true;
    }

    pub fn told_revoked(&self, n: usize) {
        let mut book = self.book();
        book.tokens[n].revoked = true;
        book.fresh_tokens.push(n);
    }

    /// Everything that was told since the last check is there.
    pub async fn check_news(&self, wire: &Wire) -> usize {
        let (runs, tokens) = {
            let mut book = self.book();
            (std::mem::take(&mut book.fresh_runs), std::mem::take(&mut book.fresh_tokens))
        };
        self.check(wire, &runs, &tokens).await
    }

    /// Everything that was ever told is there.
    pub async fn check_all(&self, wire: &Wire) -> usize {
        let (runs, tokens) = {
            let book = self.book();
            (book.runs.keys().cloned().collect::<Vec<_>>(), (0..book.tokens.len()).collect::<Vec<_>>())
        };
        self.check(wire, &runs, &tokens).await
    }

    async fn check(&self, wire: &Wire, runs: &[String], tokens: &[usize]) -> usize {
        let runs: BTreeSet<&String> = runs.iter().collect();
        let machines = self.book().machines.clone();
        join_all(runs.iter().map(|request_id| self.check_run(wire, request_id))).await;
        join_all(machines.iter().map(|(id, told)| check_machine(wire, id, told))).await;
        join_all(tokens.iter().map(|n| self.check_token(wire, *n))).await;
        runs.len() + machines.len() + tokens.len()
    }

    async fn check_run(&self, wire: &Wire, request_id: &str) {
        let told = self.book().runs[request_id].clone();
        follows(request_id, &told, &get_run(wire, &told.run_id).await);
    }

    async fn check_token(&self, wire: &Wire, n: usize) {
        let before = self.book().tokens[n].clone();
        let as_them = wire.with_token(&before.secret);
        let me = as_them.ask("GetMe", |d| async move { TokenServiceClient::new(d).get_me(mw::GetMeRequest {}).await });
        match me.await {
            Ok(_) => assert!(!before.revoked, "a revoked token opens the door again"),
            Err(e) => {
                assert_eq!(e.code, Code::Unauthenticated, "{e:?}");
                // it may have been revoked while we asked
                assert!(self.book().tokens[n].revoke_asked, "a token that was made opens nothing: {e:?}");
            }
        }
    }
}

async fn check_machine(wire: &Wire, id: &str, told: &ToldMachine) {
    let machine = wire.ask("GetMachine", |d| {
        let get = pb::GetMachineRequest { machine_id: id.to_owned() };
        async move { MachineServiceClient::new(d).get_machine(get).await }
    });
    let machine = machine.await.unwrap_or_else(|e| panic!("{id} was answered for and is lost: {e:?}"));
    assert!(machine.version >= told.version, "{id}: told {told:?}, found {machine:?}");
    if machine.version == told.version {
        let phase = machine.status.as_ref().map_or(0, |s| s.phase);
        let count = machine.labels.get("count").cloned().unwrap_or_default();
        assert_eq!((phase, &count), (told.phase, &told.count), "{id}: {machine:?}");
    }
}

/// What a server says now goes on from what was said before.
fn follows(request_id: &str, told: &ToldRun, run: &pb::Run) {
    assert_eq!(told.run_id, run.run_id, "{request_id} has two runs");
    assert_eq!(told.machine_id, run.machine_id, "{request_id}");
    assert!(run.version >= told.version, "{request_id} went back: told {told:?}, now {run:?}");
    if told.ended_at.is_some() {
        assert_eq!((run.phase(), run.version), (told.phase, told.version), "{request_id} had ended");
    }
}
