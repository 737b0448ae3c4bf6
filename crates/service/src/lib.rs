//! Use cases: who asks, whether the request makes sense, then one transaction. Both doors open into
//! this crate and into nothing else.

mod access;
mod engine_admin;
mod logs;
mod machines;
mod page;
mod plans;
mod runs;
mod sight;
mod start_run;
mod watch;
mod why;

use domain::Error;
use engine::Engine;
use provider::Providers;
use std::sync::Arc;
use store::{RunFeed, Store};
use tokio_util::sync::CancellationToken;

pub use access::{Access, Principal, Role, new_secret};
pub use engine_admin::Described;
pub use machines::{MachineUpdate, NewMachine};
pub use page::{Page, PageRequest};
pub use runs::RunView;
pub use start_run::StartRun;
// what the doors show of the engine, by its own types
pub use store::execution::{Execution, attempt_of};
pub use store::switch::Freeze;

/// The product's use cases over one store. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    engine: Engine,
    providers: Providers,
    feed: Arc<RunFeed>,
    access: Access,
    /// For the metrics.
    counted: sight::Counted,
    /// Streams end, and say why, when the server stops.
    closing: CancellationToken,
}

impl Service {
    pub async fn new(store: Store, engine: Engine, providers: Providers) -> Result<Self, Error> {
        let feed = RunFeed::new(store.clone()).await?;
        tokio::spawn(feed.clone().tail());
        let access = Access::new(store.clone());
        let inner = Inner {
            store,
            engine,
            providers,
            feed,
            access,
            counted: sight::Counted::default(),
            closing: CancellationToken::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    pub fn access(&self) -> &Access {
        &self.inner.access
    }

    /// Ends all streams: the server is about to stop.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }
}
