//! Why for what has little to wait for: executions (as their runs or jobs), plans and tokens.

use super::{Action, Explanation, job, run};
use crate::{Call, plans, tokens};
use domain::token::{Role, Token, TokenState};
use domain::{ExecutionId, Reason, RunId, TokenId};
use store::{Failure, Tx, TxResult, execution, token};

pub(super) fn explain(tx: &mut Tx<'_>, call: &Call, id: &str) -> TxResult<Option<Explanation>> {
    if let Some(e) = execution::get(tx, &ExecutionId::from_text(id))? {
        // what holds an execution holds its run, or its job
        let of_run = run::gather(tx, call, &RunId::from_text(e.subject.clone()))?;
        let of_it = match of_run {
            Some(facts) => Some(facts.explain(call)),
            None => job::explain(tx, call, &e.subject)?,
        };
        let (id, state) = (id.to_owned(), e.status.as_str().to_owned());
        return Ok(of_it.map(|of_it| Explanation { id, kind: "execution", state, ..of_it }));
    }
    // who may not list tokens does not learn of one here
    if call.by.role >= Role::Admin
        && !call.by.is_scoped()
        && let Some(token) = token::get(tx, &TokenId::from_text(id))?
    {
        return of_token(tx, call, &token).map(Some);
    }
    match plans::find(tx, id) {
        Ok(plan) => Ok(Some(Explanation {
            id: id.to_owned(),
            kind: "plan",
            state: "immutable".to_owned(),
            projected: "immutable".to_owned(),
            at_rest: true,
            summary: format!("plan {id} has {} steps and never changes", plan.steps.len()),
            actions: vec![Action::new(
                call,
                "baremetal.v1.RunService/StartRun",
                "start a run with it",
                format!("millwright run start MACHINE --plan {id}"),
                Ok(()),
            )],
            ..Explanation::default()
        })),
        Err(Failure::Refused(e)) if e.reason == Reason::PlanNotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn of_token(tx: &mut Tx<'_>, call: &Call, token: &Token) -> TxResult<Explanation> {
    let state = token.state_text(tx.now());
    let because = match (token.state, token.expires_at) {
        (TokenState::Revoked, _) => format!(" by {}", token.revoked_by),
        (TokenState::Active, Some(at)) if at <= tx.now() => format!(" since {at}"),
        (TokenState::Active, Some(at)) => format!("; it expires at {at}"),
        (TokenState::Active, None) => "; it does not expire".to_owned(),
    };
    let scope =
        if token.customer_id.is_empty() { "the fleet".to_owned() } else { format!("customer {}", token.customer_id) };
    let open = match token.state {
        TokenState::Active => tokens::may_revoke(tx, token)?,
        TokenState::Revoked => Err(domain::Error::new(Reason::TokenRevoked, "it is revoked already")),
    };
    let ended = token.revoked_at.or(token.expires_at.filter(|at| *at <= tx.now()));
    Ok(Explanation {
        id: token.id.to_string(),
        kind: "token",
        state: state.to_owned(),
        projected: state.to_owned(),
        at_rest: true,
        since: Some(ended.unwrap_or(token.created_at)),
        summary: format!("token {} ({}, {} for {scope}) is {state}{because}", token.id, token.name, token.role),
        deadline: token.expires_at,
        actions: vec![Action::new(
            call,
            "millwright.v1.TokenService/RevokeToken",
            "revoke",
            format!("millwright token revoke {}", token.id),
            open,
        )],
        ..Explanation::default()
    })
}
