//! What jobs need of the service. Bundles for machines that they deploy. They are made again whenever they are needed and stored nowhere: the token is
//! signed with the server's own key, for one node, one job and one deployment.

use super::{TOKEN_PREFIX, token_hash};
use crate::Service;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::agent::BUNDLE_LIFE;
use domain::{Error, JobId, NodeId, RunId, Secret};
use std::sync::OnceLock;
use workflow::job::{Bundles, MadeBundle, RepaveWish, Runs};

#[async_trait]
impl Bundles for Service {
    async fn make(&self, node: &NodeId, job: &JobId, number: u32) -> Result<MadeBundle, Error> {
        let key = self.vault().keys().current()?;
        let signed = key.veil(format!("bootstrap token\0{node}\0{job}\0{number}").as_bytes());
        let token = Secret::new(format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(signed)));
        let expires_at = self.now().plus(BUNDLE_LIFE);
        let text = Secret::new(self.agent_bundle(node, &token, expires_at).await?);
        Ok(MadeBundle { text, hash: token_hash(&token), expires_at })
    }
}

/// The service makes bundles and starts runs for the engine's jobs, and is itself made after the engine.
#[derive(Default)]
pub struct LateBundles(OnceLock<Service>);

impl LateBundles {
    /// Said once.
    pub fn come_from(&self, service: &Service) {
        self.0.get_or_init(|| service.clone());
    }

    fn service(&self) -> Result<&Service, Error> {
        self.0.get().ok_or_else(|| Error::internal("a job wants something before there is a service"))
    }
}

#[async_trait]
impl Bundles for LateBundles {
    async fn make(&self, node: &NodeId, job: &JobId, number: u32) -> Result<MadeBundle, Error> {
        self.service()?.make(node, job, number).await
    }
}

#[async_trait]
impl Runs for LateBundles {
    async fn repave(&self, wish: &RepaveWish) -> Result<RunId, Error> {
        self.service()?.repave(wish).await
    }

    async fn cancel(&self, run: &RunId, by: &str, reason: &str) -> Result<(), Error> {
        self.service()?.cancel(run, by, reason).await
    }
}
