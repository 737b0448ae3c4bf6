//! The reconciler as the rest of the server sees it: start, stop.

use crate::every::every;
use crate::options::ReconcilerOptions;
use crate::{layers, node_sweep, orders, prompt, sites, sweep};
use domain::observation::Lane;
use provider::Providers;
use std::sync::{Arc, Mutex, PoisonError};
use store::Store;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) struct Core {
    pub store: Store,
    pub providers: Providers,
    pub options: ReconcilerOptions,
    pub stop: CancellationToken,
}

pub struct Reconciler {
    core: Arc<Core>,
    tasks: Mutex<JoinSet<()>>,
}

impl Reconciler {
    /// Begins to look at once, and goes on until stopped or dropped.
    pub fn start(store: &Store, providers: Providers, options: ReconcilerOptions) -> Self {
        // on the engine's lane: no flood of clients holds it up
        let store = store.for_engine();
        let core = Arc::new(Core { store, providers, options, stop: CancellationToken::new() });
        let mut tasks = JoinSet::new();
        // heard from this moment on, so that nothing falls between the first sweep and the first hint
        tasks.spawn(prompt::run(core.clone(), core.store.signals().machines()));
        let (period, node_period) = (core.options.period, core.options.node_period);
        let looking = "looking for installations that nothing is heard of";
        tasks.spawn(every(core.clone(), period, looking, orders::sweep));
        tasks.spawn(every(core.clone(), node_period, "looking after nodes", node_sweep::sweep));
        tasks.spawn(every(core.clone(), period, "comparing nodes with their machines", layers::sweep));
        tasks.spawn(sites::run(core.clone()));
        for lane in Lane::ALL {
            tasks.spawn(sweep::run(core.clone(), lane));
        }
        Self { core, tasks: Mutex::new(tasks) }
    }

    /// Looks in the air are given up: the next start makes them again.
    pub async fn stop(&self) {
        self.core.stop.cancel();
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while let Some(ended) = tasks.join_next().await {
            if let Err(e) = ended {
                tracing::error!(error = %e, "a task of the reconciler died");
            }
        }
    }
}
