//! Machines that have just changed are looked at at once: registered, described anew, moved, or let go by
//! a run. Only a hint: what is missed here, the next sweep finds.

use crate::options::PROMPT_MAX;
use crate::reconciler::Core;
use crate::record::{Read, Recorded};
use domain::{Error, MachineId};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use store::{machine, switch};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;

/// Each machine once, in the order they came.
#[derive(Default)]
struct Waiting {
    queue: VecDeque<MachineId>,
    known: HashSet<MachineId>,
}

impl Waiting {
    fn push(&mut self, id: MachineId) {
        if self.queue.len() < PROMPT_MAX && self.known.insert(id.clone()) {
            self.queue.push_back(id);
        }
    }

    fn pop(&mut self) -> Option<MachineId> {
        let id = self.queue.pop_front()?;
        self.known.remove(&id);
        Some(id)
    }
}

/// Follows the changes until told to stop.
pub(crate) async fn run(core: Arc<Core>, mut changed: Receiver<MachineId>) {
    let mut waiting = Waiting::default();
    let mut looks = JoinSet::new();
    loop {
        while looks.len() < core.options.concurrency
            && let Some(id) = waiting.pop()
        {
            looks.spawn(look(core.clone(), id));
        }
        tokio::select! {
            biased;
            () = core.stop.cancelled() => return,
            Some(ended) = looks.join_next(), if !looks.is_empty() => match ended {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::debug!(error = %e, "looking at a machine that has changed"),
                Err(e) => tracing::error!(error = %e, "a look died"),
            },
            id = changed.recv() => match id {
                Ok(id) => waiting.push(id),
                Err(RecvError::Lagged(missed)) => tracing::debug!(missed, "left to the next sweep"),
                Err(RecvError::Closed) => return,
            },
        }
    }
}

async fn look(core: Arc<Core>, id: MachineId) -> Result<(), Error> {
    let key = id.clone();
    let read = core.store.read(move |tx| {
        let frozen = switch::frozen(tx)?.is_some();
        Ok(machine::get(tx, &key)?.map(|machine| Read { machine, frozen }))
    });
    let Some(read) = read.await? else { return Ok(()) };
    if core.look_at(&read).await? == Recorded::Outdated {
        core.store.signals().look_at(&id);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_waits_once_and_the_queue_is_bounded() {
        let mut waiting = Waiting::default();
        let id = |n: usize| MachineId::from_text(format!("m-{n}"));
        for _ in 0..3 {
            waiting.push(id(1));
        }
        assert_eq!((waiting.pop(), waiting.pop()), (Some(id(1)), None));
        for n in 0..PROMPT_MAX + 10 {
            waiting.push(id(n));
        }
        assert_eq!((waiting.queue.len(), waiting.known.len()), (PROMPT_MAX, PROMPT_MAX));
        assert_eq!(waiting.pop(), Some(id(0)));
        waiting.push(id(0));
        assert_eq!(waiting.queue.len(), PROMPT_MAX);
    }
}
