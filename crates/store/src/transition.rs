//! The one primitive: every state moves through [`Tx::transition`], and in no other way. It checks the
//! edge, its owner and its guard, has the row compared and swapped, and puts one row into the log.

use crate::db::NewLogRow;
use crate::error::{Failure, TxResult};
use crate::tx::Tx;
use domain::lifecycle::{Guard, Owner, State, Verdict, allowed_next, judge};
use domain::{Error, Reason};

/// Who makes a move, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    owner: Owner,
    pub trigger: &'static str,
    pub actor: String,
    pub comment: String,
}

impl Cause {
    /// A person or automation that came through a door.
    pub fn operator(actor: &str, trigger: &'static str, comment: &str) -> Self {
        Self { owner: Owner::Operator, trigger, actor: actor.to_owned(), comment: comment.to_owned() }
    }

    /// The engine, carrying out a run.
    pub fn executor(actor: &str, trigger: &'static str, comment: &str) -> Self {
        Self { owner: Owner::Executor, trigger, actor: actor.to_owned(), comment: comment.to_owned() }
    }

    /// A reconciler, from what it has seen.
    pub fn reconciler(actor: &str, trigger: &'static str, comment: &str) -> Self {
        Self { owner: Owner::Reconciler, trigger, actor: actor.to_owned(), comment: comment.to_owned() }
    }

    /// A machine that speaks for itself.
    pub fn node(actor: &str, trigger: &'static str, comment: &str) -> Self {
        Self { owner: Owner::Node, trigger, actor: actor.to_owned(), comment: comment.to_owned() }
    }

    /// The same, for what follows from it.
    pub fn then(&self, trigger: &'static str) -> Self {
        Self { trigger, ..self.clone() }
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }
}

/// One move of one entity.
pub struct Transition<'a, S: State> {
    pub entity_id: &'a str,
    /// Whose history the row belongs to: the entity itself, or what it is part of.
    pub subject: &'a str,
    /// Whose it is at this moment; empty: the fleet's alone.
    pub customer_id: &'a str,
    pub from: Option<S>,
    pub to: S,
    /// The entity's version after the move.
    pub version: u64,
    /// What the row says beyond the states, as JSON.
    pub metadata: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Moved {
    Moved,
    /// It was in that state already, and the lifecycle has no edge from it to itself.
    AlreadyThere,
}

impl Tx<'_> {
    /// `guard` judges the edge's guard by facts of this transaction; `write` compares and swaps the row
    /// and returns how many rows it changed. Losing that race rolls back the caller's whole work.
    pub fn transition<S: State>(
        &mut self,
        t: Transition<'_, S>,
        cause: &Cause,
        guard: impl FnOnce(Guard) -> Result<(), Error>,
        write: impl FnOnce(&mut Self) -> TxResult<u64>,
    ) -> TxResult<Moved> {
        match judge(t.from, t.to, cause.trigger, cause.owner) {
            Verdict::Allowed(needed) => guard(needed)?,
            Verdict::NotYours(owner) => return Err(not_yours(&t, cause, owner).into()),
            Verdict::Illegal if t.from == Some(t.to) => return Ok(Moved::AlreadyThere),
            Verdict::Illegal => return Err(illegal(&t, cause).into()),
        }
        if write(self)? != 1 {
            return Err(Failure::Lost(format!("{} {}", S::ENTITY, t.entity_id)));
        }
        let at = self.now().micros();
        self.closing.log.push(NewLogRow {
            at,
            entity_kind: S::ENTITY,
            entity_id: t.entity_id.to_owned(),
            subject: t.subject.to_owned(),
            customer_id: t.customer_id.to_owned(),
            from_state: t.from.map_or("", S::as_str),
            to_state: t.to.as_str(),
            version: t.version,
            trigger: cause.trigger,
            owner: cause.owner.as_str(),
            actor: cause.actor.clone(),
            comment: cause.comment.clone(),
            metadata: t.metadata,
        });
        Ok(Moved::Moved)
    }
}

fn state_name<S: State>(state: Option<S>) -> &'static str {
    state.map_or("(new)", S::as_str)
}

fn illegal<S: State>(t: &Transition<'_, S>, cause: &Cause) -> Error {
    let allowed: Vec<&str> = allowed_next(t.from, cause.owner).into_iter().map(S::as_str).collect();
    let next = if allowed.is_empty() { "nothing is".to_owned() } else { format!("allowed: {}", allowed.join(", ")) };
    Error::new(
        Reason::IllegalTransition,
        format!(
            "{} {} is {} and cannot become {} by {} of {}; from here {next}",
            S::ENTITY,
            t.entity_id,
            state_name(t.from),
            t.to.as_str(),
            cause.trigger,
            cause.owner
        ),
    )
    .allowing(allowed)
}

fn not_yours<S: State>(t: &Transition<'_, S>, cause: &Cause, owner: Owner) -> Error {
    let allowed: Vec<&str> = allowed_next(t.from, cause.owner).into_iter().map(S::as_str).collect();
    Error::new(
        Reason::NotYourTransition,
        format!(
            "{} {}: from {} to {} is made by the {owner}, not by the {}",
            S::ENTITY,
            t.entity_id,
            state_name(t.from),
            t.to.as_str(),
            cause.owner
        ),
    )
    .allowing(allowed)
}
