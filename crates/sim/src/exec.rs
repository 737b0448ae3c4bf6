//! Commands on simulated hosts: started in the background, polled page by page, killed.

use crate::act::{START, no_answer, pause};
use crate::change::Change;
use crate::control;
use crate::fleet::SimFleet;
use crate::job::{End, KILLED};
use crate::output::Printout;
use crate::world::Cause;
use async_trait::async_trait;
use domain::Timestamp;
use provider::{Ack, Command, Exec, ExecProgress, ExecState, Operation, ProviderResult, Target};
use std::sync::Arc;
use std::time::Duration;

/// How long a poll may wait for news.
const POLL_WAIT: Duration = Duration::from_millis(200);

enum Seen {
    NeverStarted,
    Running { left: Duration },
    Ended(Arc<Printout>, End),
}

impl SimFleet {
    fn see(&self, target: &Target, key: &str) -> ProviderResult<Seen> {
        self.visit(target, |visit| {
            let machine = visit.machine()?;
            if !machine.up {
                return Err(no_answer(target).into());
            }
            Ok(match machine.job(key) {
                None => Seen::NeverStarted,
                Some(job) => match job.end {
                    None => Seen::Running { left: Timestamp::from_micros(job.due_micros).since(visit.now) },
                    Some(end) => Seen::Ended(Arc::clone(&job.printout), end),
                },
            })
        })
    }
}

#[async_trait]
impl Exec for SimFleet {
    async fn start(&self, target: &Target, command: &Command, op: &Operation) -> ProviderResult<Ack> {
        let change = Change::ExecStarted {
            command: command.command.clone(),
            args: command.args.clone(),
            environment: command.environment.keys().cloned().collect(),
            output_bytes: control::output_bytes(&target.labels)?,
            exit_code: 0,
            due_micros: 0,
        };
        self.act(target, op, &START, change).await
    }

    async fn poll(&self, target: &Target, op: &Operation, offset: u64) -> ProviderResult<ExecProgress> {
        let key = op.key();
        let mut seen = self.see(target, &key)?;
        if let Seen::Running { left } = seen {
            pause(left.min(POLL_WAIT)).await;
            seen = self.see(target, &key)?;
        }
        Ok(match seen {
            Seen::NeverStarted => ExecProgress { state: ExecState::NeverStarted, output: Vec::new(), offset },
            Seen::Running { .. } => ExecProgress { state: ExecState::Running, output: Vec::new(), offset },
            Seen::Ended(printout, end) => {
                let (output, offset, all) = printout.page(end.killed, offset);
                // its end is news only after all it printed
                let state = if all { ExecState::Exited(end.exit_code) } else { ExecState::Running };
                ExecProgress { state, output, offset }
            }
        })
    }

    async fn kill(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        let key = op.key();
        self.visit(target, |visit| {
            if visit.machine()?.can_kill(&key) {
                let cause = Cause { operation: &key, fence: &op.fence };
                visit.change(cause, Change::ExecKilled { exit_code: KILLED })?;
            }
            Ok(Ack::Done)
        })
    }
}
