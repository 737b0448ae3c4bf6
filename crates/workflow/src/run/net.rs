//! Applies network parameters. Done when those in force agree with those asked for.

use super::stage::{At, Stage, acted, missing};
use async_trait::async_trait;
use engine::{Acted, Look, Seen};
use std::collections::BTreeMap;

pub(super) struct Net {
    pub parameters: BTreeMap<String, String>,
}

#[async_trait]
impl Stage for Net {
    async fn look(&self, at: &At<'_>) -> Look {
        let Some(network) = at.access.provider.network() else { return Seen::Failed(missing("network")).into() };
        match network.current(at.target()).await {
            Ok(current) if self.parameters.iter().all(|(k, v)| current.get(k) == Some(v)) => {
                Seen::Done(format!("{} parameters in force", self.parameters.len())).into()
            }
            Ok(_) => Seen::Clear.into(),
            Err(e) => at.unseen(e).into(),
        }
    }

    async fn act(&self, at: &At<'_>) -> Acted {
        match at.access.provider.network() {
            Some(network) => acted(network.apply(at.target(), &self.parameters, &at.op).await),
            None => Acted::No(missing("network")),
        }
    }
}
