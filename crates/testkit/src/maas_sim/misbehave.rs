//! What goes wrong on demand, by call and by count.

use super::log::Answered;
use super::request::{Answer, Call};
use std::sync::Arc;
use tokio::sync::Barrier;

/// Which calls. Everything that is given must fit.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    method: String,
    path_has: String,
    op: String,
}

impl Calls {
    /// All of them.
    pub fn any() -> Self {
        Self::default()
    }

    /// `POST …?op=…`.
    pub fn op(op: &str) -> Self {
        Self { op: op.to_owned(), ..Self::default() }
    }

    /// `GET machines/…`: reads of one machine, or of many.
    pub fn reads() -> Self {
        Self { method: "GET".into(), path_has: "/machines/".into(), op: String::new() }
    }

    pub fn create() -> Self {
        Self { method: "POST".into(), path_has: "/machines/".into(), op: "none".into() }
    }

    pub fn delete() -> Self {
        Self { method: "DELETE".into(), path_has: "/machines/".into(), op: String::new() }
    }

    pub fn method(method: &str, path_has: &str) -> Self {
        Self { method: method.to_owned(), path_has: path_has.to_owned(), op: String::new() }
    }

    /// Only those with this operation; empty: with none.
    #[must_use]
    pub fn with_op(mut self, op: &str) -> Self {
        self.op = if op.is_empty() { "none".to_owned() } else { op.to_owned() };
        self
    }

    /// Only those about this machine.
    #[must_use]
    pub fn of(mut self, system_id: &str) -> Self {
        self.path_has = format!("/{system_id}/");
        self
    }

    fn fit(&self, call: &Call) -> bool {
        let op = call.op().unwrap_or("none");
        (self.method.is_empty() || self.method == call.method)
            && call.path.contains(&self.path_has)
            && (self.op.is_empty() || self.op == op)
    }
}

#[derive(Clone, Debug)]
pub enum Misbehaviour {
    /// 409 in plain words; nothing is done.
    Conflict(String),
    /// 409 as an HTML page with `Retry-After: 5`, as after a transaction that could not be serialised; nothing is done.
    TryAgain,
    /// This status and text; nothing is done.
    Refuse(u16, String),
    /// It is done, and answered with 500.
    FailAfter,
    /// It is done, and answered with this status and text.
    AnswerAfter(u16, String),
    /// Nothing is done, and no answer ever comes.
    HangBefore,
    /// It is done, and no answer ever comes.
    HangAfter,
    /// Nothing is done, and the connection is reset.
    ResetBefore,
    /// It is done, and the connection is reset.
    ResetAfter,
    /// It is done, and what is answered with 200 is no JSON.
    Garbage,
    /// It is done, and answered with 200 and this.
    Say(String),
    /// They wait for each other until so many are there; then each is checked against what there was when it came.
    Race(usize),
}

pub(super) struct Rule {
    calls: Calls,
    what: Misbehaviour,
    after: usize,
    left: usize,
    hits: usize,
    barrier: Option<Arc<Barrier>>,
}

/// What is to be done with a call.
pub(super) enum Fate {
    Normal,
    /// Answered so; nothing is done.
    Instead(Answer),
    /// Done, then answered so.
    Then(Answer),
    Hang {
        done: bool,
    },
    Reset {
        done: bool,
    },
    Wait(Arc<Barrier>),
}

impl Fate {
    pub fn answered(&self) -> Answered {
        match self {
            Fate::Normal | Fate::Instead(_) | Fate::Wait(_) => Answered::Properly,
            Fate::Then(_) => Answered::Garbled,
            Fate::Hang { .. } | Fate::Reset { .. } => Answered::Lost,
        }
    }
}

impl Rule {
    /// From the call after the first `after` ones on, `times` times.
    pub fn new(calls: Calls, what: Misbehaviour, after: usize, times: usize) -> Self {
        let barrier = match &what {
            Misbehaviour::Race(n) => Some(Arc::new(Barrier::new(*n))),
            _ => None,
        };
        Self { calls, what, after, left: times, hits: 0, barrier }
    }

    pub fn hits(&self) -> usize {
        self.hits
    }
}

/// The first rule that fits decides.
pub(super) fn fate(rules: &mut [Rule], call: &Call) -> Fate {
    for rule in rules.iter_mut().filter(|rule| rule.left > 0 && rule.calls.fit(call)) {
        if rule.after > 0 {
            rule.after -= 1;
            continue;
        }
        rule.left -= 1;
        rule.hits += 1;
        return match &rule.what {
            Misbehaviour::Conflict(text) => Fate::Instead(Answer::text(409, text.clone())),
            Misbehaviour::TryAgain => {
                let page = "<html><head><title>Conflict</title></head><body><h1>Conflict</h1></body></html>";
                let mut answer = Answer::new(409, "text/html; charset=utf-8", page);
                answer.headers.push(("Retry-After", "5".into()));
                Fate::Instead(answer)
            }
            Misbehaviour::Refuse(status, text) => Fate::Instead(Answer::text(*status, text.clone())),
            Misbehaviour::FailAfter => Fate::Then(Answer::text(500, "Internal server error.")),
            Misbehaviour::AnswerAfter(status, text) => Fate::Then(Answer::text(*status, text.clone())),
            Misbehaviour::HangBefore => Fate::Hang { done: false },
            Misbehaviour::HangAfter => Fate::Hang { done: true },
            Misbehaviour::ResetBefore => Fate::Reset { done: false },
            Misbehaviour::ResetAfter => Fate::Reset { done: true },
            Misbehaviour::Garbage => Fate::Then(Answer::new(200, super::request::JSON, "{\"system_id\": \"4g4")),
            Misbehaviour::Say(text) => Fate::Then(Answer::new(200, super::request::JSON, text.clone())),
            Misbehaviour::Race(_) => rule.barrier.clone().map_or(Fate::Normal, Fate::Wait),
        };
    }
    Fate::Normal
}
