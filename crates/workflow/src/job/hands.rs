//! What the stages of jobs reach outside the store with. Whoever starts a server hands them in; none of them is seen by
//! anybody else.

use super::{NoRuns, Runs};
use async_trait::async_trait;
use domain::{Error, JobId, NodeId, Reason, Secret, Timestamp};
use provider::{Keyring, MaasClients, NoMaas};
use std::sync::Arc;

#[derive(Clone)]
pub struct Hands {
    pub maas: Arc<dyn MaasClients>,
    pub keyring: Arc<dyn Keyring>,
    pub bundles: Arc<dyn Bundles>,
    pub runs: Arc<dyn Runs>,
    pub allocations: Arc<dyn Allocations>,
}

impl Hands {
    /// Of a server that knows no MAAS, and where nothing is placed.
    pub fn bare(keyring: Arc<dyn Keyring>) -> Self {
        Self {
            maas: Arc::new(NoMaas),
            keyring,
            bundles: Arc::new(NoBundles),
            runs: Arc::new(NoRuns),
            allocations: Arc::new(NoAllocations),
        }
    }
}

/// A bundle for a machine that a job deploys.
#[derive(Clone, Debug)]
pub struct MadeBundle {
    pub text: Secret,
    /// What is stored of its token.
    pub hash: String,
    pub expires_at: Timestamp,
}

/// Makes bundles that need not be kept: the same job, node and number always give the same token, as long as the server's
/// key is the same.
#[async_trait]
pub trait Bundles: Send + Sync {
    async fn make(&self, node: &NodeId, job: &JobId, number: u32) -> Result<MadeBundle, Error>;
}

/// What is placed on nodes, which is the business of whoever places it.
#[async_trait]
pub trait Allocations: Send + Sync {
    /// By name; empty: nothing is.
    async fn on(&self, node: &NodeId) -> Result<Vec<String>, Error>;

    /// Has all of it released, as whoever placed it releases things; what is kept for tenants beside it stays.
    async fn release(&self, node: &NodeId, reason: &str) -> Result<(), Error>;
}

/// Where nothing is ever placed.
pub struct NoAllocations;

#[async_trait]
impl Allocations for NoAllocations {
    async fn on(&self, _: &NodeId) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    async fn release(&self, _: &NodeId, _: &str) -> Result<(), Error> {
        Ok(())
    }
}

/// Where no machine is ever deployed.
pub struct NoBundles;

#[async_trait]
impl Bundles for NoBundles {
    async fn make(&self, _: &NodeId, _: &JobId, _: u32) -> Result<MadeBundle, Error> {
        Err(Error::new(Reason::CapabilityMissing, "this server makes no bundles: its agents' port is switched off"))
    }
}
