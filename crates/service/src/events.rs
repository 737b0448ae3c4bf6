//! WatchEvents: the log itself, every transition in order, resumable by sequence.

use crate::standing::OpenStream;
use crate::watch::check_range;
use crate::{Call, Service};
use domain::Error;
use domain::credential::CredentialState;
use domain::filter::{Field, Filter, Schema};
use domain::lifecycle::State as _;
use domain::token::{Role, TokenState};
use futures::Stream;
use futures::stream::try_unfold;
use std::collections::VecDeque;
use std::sync::Arc;
use store::{LogEvent, LogRow, log_range};

const FILTER: Schema = Schema {
    fields: &[
        Field::text("kind"),
        Field::text("id"),
        Field::text("subject"),
        Field::text("to"),
        Field::text("trigger"),
        Field::text("actor"),
    ],
    labels: false,
};

fn matches(filter: &Filter, row: &LogRow) -> bool {
    filter.matches(&|field| match field {
        "kind" => Some(row.entity_kind.clone()),
        "id" => Some(row.entity_id.clone()),
        "subject" => Some(row.subject.clone()),
        "to" => Some(row.to_state.clone()),
        "trigger" => Some(row.trigger.clone()),
        "actor" => Some(row.actor.clone()),
        _ => None,
    })
}

/// Tokens and credentials are for those who may list them.
fn least_role(kind: &str) -> Role {
    match kind {
        TokenState::ENTITY => Role::Admin,
        CredentialState::ENTITY => Role::Operator,
        _ => Role::Viewer,
    }
}

struct Follow {
    service: Service,
    call: Arc<Call>,
    _place: OpenStream,
    filter: Filter,
    cursor: u64,
    /// Where to end, if it is not to follow.
    until: Option<u64>,
    ready: VecDeque<Arc<LogRow>>,
}

impl Service {
    /// Every transition after `after`, then those to come; without it, only those to come.
    pub async fn watch_events(
        &self,
        call: &Arc<Call>,
        filter: &str,
        after: Option<u64>,
        follow: bool,
    ) -> Result<impl Stream<Item = Result<Arc<LogRow>, Error>> + Send + use<>, Error> {
        let filter = FILTER.parse(filter)?;
        let place = call.by.standing.open_stream()?;
        let range = self.store().read(log_range).await?;
        if let Some(after) = after {
            check_range(after, range)?;
        }
        let state = Follow {
            service: self.clone(),
            call: call.clone(),
            _place: place,
            filter,
            cursor: after.unwrap_or(range.head),
            until: (!follow).then_some(range.head),
            ready: VecDeque::new(),
        };
        Ok(try_unfold(state, |mut state| async move { Ok(state.next().await?.map(|row| (row, state))) }))
    }
}

impl Follow {
    async fn next(&mut self) -> Result<Option<Arc<LogRow>>, Error> {
        let mut head = self.service.inner.feed.head();
        loop {
            self.call.still_good(self.service.now())?;
            if let Some(row) = self.ready.pop_front() {
                return Ok(Some(row));
            }
            if self.until.is_some_and(|until| self.cursor >= until) {
                return Ok(None);
            }
            head.look();
            let (events, cursor) = self.service.inner.feed.after(self.cursor).await?;
            let moved = cursor > self.cursor;
            self.cursor = cursor;
            self.take(events);
            if moved {
                continue;
            }
            tokio::select! {
                biased;
                error = self.service.over(&self.call) => return Err(error),
                () = head.grew() => {}
            }
        }
    }

    fn take(&mut self, events: Vec<LogEvent>) {
        let within = |e: &LogEvent| self.until.is_none_or(|until| e.row.sequence <= until);
        let by = &self.call.by;
        // whose it was when it happened, whoever has the machine now
        let seen = |e: &LogEvent| by.sees_customer(&e.row.customer_id) && by.role >= least_role(&e.row.entity_kind);
        let wanted = events.into_iter().filter(|e| within(e) && seen(e) && matches(&self.filter, &e.row));
        self.ready.extend(wanted.map(|e| e.row));
    }
}
