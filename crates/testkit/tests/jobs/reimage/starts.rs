//! Runs that jobs start, by somebody who can lose a question or an answer, once.

use async_trait::async_trait;
use domain::{Error, Reason, RunId};
use service::agents::LateBundles;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use workflow::job::{RepaveWish, Runs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Before,
    After,
    /// Whoever asked never hears anything.
    HangsBefore,
    HangsAfter,
}

pub struct Starts {
    by: Arc<LateBundles>,
    fault: Mutex<Option<Fault>>,
    pub hit: AtomicBool,
}

impl Starts {
    pub fn new(by: &Arc<LateBundles>) -> Self {
        Self { by: by.clone(), fault: Mutex::default(), hit: AtomicBool::new(false) }
    }

    pub fn badly(&self, fault: Fault) {
        *self.fault.lock().expect("a lock") = Some(fault);
    }
}

#[async_trait]
impl Runs for Starts {
    async fn repave(&self, wish: &RepaveWish) -> Result<RunId, Error> {
        let fault = self.fault.lock().expect("a lock").take();
        let lost = || Error::new(Reason::Contention, "the answer was lost, as the test wants it");
        match fault {
            None => self.by.repave(wish).await,
            Some(fault @ (Fault::Before | Fault::HangsBefore)) => {
                self.hit.store(true, Ordering::Release);
                if fault == Fault::HangsBefore {
                    std::future::pending::<()>().await;
                }
                Err(lost())
            }
            Some(fault @ (Fault::After | Fault::HangsAfter)) => {
                self.by.repave(wish).await?;
                self.hit.store(true, Ordering::Release);
                if fault == Fault::HangsAfter {
                    std::future::pending::<()>().await;
                }
                Err(lost())
            }
        }
    }

    async fn cancel(&self, run: &RunId, by: &str, reason: &str) -> Result<(), Error> {
        self.by.cancel(run, by, reason).await
    }
}
