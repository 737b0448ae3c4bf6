//! The configured providers, by the name machines call them.

use crate::Provider;
use domain::machine::Machine;
use domain::plan::Step;
use domain::{Error, Reason};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Default)]
pub struct Providers {
    by_name: BTreeMap<String, Arc<dyn Provider>>,
}

impl Providers {
    #[must_use]
    pub fn with(mut self, name: &str, provider: Arc<dyn Provider>) -> Self {
        self.by_name.insert(name.to_owned(), provider);
        self
    }

    pub fn get(&self, name: &str) -> Result<Arc<dyn Provider>, Error> {
        self.by_name.get(name).cloned().ok_or_else(|| {
            let known: Vec<&String> = self.by_name.keys().collect();
            let problem = if name.is_empty() {
                "the machine names no provider (spec.provider)".to_owned()
            } else {
                format!("no provider is configured under the name {name:?}")
            };
            Error::new(Reason::ProviderUnknown, format!("{problem}; configured here: {known:?}")).allowing(known)
        })
    }

    /// The provider of this name; without a name, the only one that has what is needed. With its name.
    pub fn choose(
        &self,
        name: &str,
        what: &str,
        has: impl Fn(&dyn Provider) -> bool,
    ) -> Result<(String, Arc<dyn Provider>), Error> {
        if !name.is_empty() {
            return Ok((name.to_owned(), self.get(name)?));
        }
        let able: Vec<(&String, &Arc<dyn Provider>)> = self.by_name.iter().filter(|(_, p)| has(p.as_ref())).collect();
        match able.as_slice() {
            [(name, only)] => Ok(((*name).clone(), Arc::clone(only))),
            [] => Err(Error::new(Reason::CapabilityMissing, format!("no provider here has {what}"))),
            several => {
                let names: Vec<&String> = several.iter().map(|(name, _)| *name).collect();
                Err(Error::field("provider", format!("several have {what}; name one of {names:?}")).allowing(names))
            }
        }
    }

    /// Endpoints that are left alone at the moment, of all of them.
    pub fn resting(&self) -> usize {
        self.by_name.values().map(|provider| provider.resting()).sum()
    }

    pub async fn close(&self) {
        for provider in self.by_name.values() {
            provider.close().await;
        }
    }

    /// Refuses steps that the provider cannot carry out, or not on this machine, before anything begins.
    pub fn check(&self, machine: &Machine, steps: &[Step]) -> Result<(), Error> {
        let name = machine.spec.provider_name(&machine.labels);
        let provider = self.get(name)?;
        for step in steps {
            if let Some(missing) = step.kind.needs().iter().find(|c| !provider.can(**c)) {
                return Err(Error::new(
                    Reason::CapabilityMissing,
                    format!(
                        "step {} ({}) needs the capability {:?}, which provider {name:?} does not have; choose another plan",
                        step.name,
                        step.kind.name(),
                        missing.as_str()
                    ),
                )
                .with("capability", missing.as_str()));
            }
            if let Some(lacks) = provider.lacks(&machine.spec, &step.kind) {
                let message = format!(
                    "step {} ({}) cannot be carried out on machine {}: {lacks}; fill it in, or choose another plan",
                    step.name,
                    step.kind.name(),
                    machine.id
                );
                return Err(Error::new(Reason::CapabilityMissing, message));
            }
        }
        Ok(())
    }
}
