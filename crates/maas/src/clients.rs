//! The clients of all sites, each with its own connections, bounds and breaker.

use crate::client::Client;
use crate::options::Options;
use async_trait::async_trait;
use provider::{Maas, MaasAccess, MaasClients, ProviderResult};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Beyond so many, those that nobody uses are forgotten.
const CLIENTS_MAX: usize = 1_000;

#[derive(Default)]
pub struct Clients {
    options: Options,
    by_site: Mutex<HashMap<String, (MaasAccess, Arc<Client>)>>,
}

impl Clients {
    pub fn new(options: Options) -> Self {
        Self { options, by_site: Mutex::default() }
    }

    fn by_site(&self) -> MutexGuard<'_, HashMap<String, (MaasAccess, Arc<Client>)>> {
        self.by_site.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    fn of(&self, access: &MaasAccess) -> ProviderResult<Arc<Client>> {
        if let Some((of, client)) = self.by_site().get(&access.site)
            && of == access
        {
            return Ok(client.clone());
        }
        // reading the authorities of a host takes its time: nobody waits for that
        let made = Arc::new(Client::new(access, self.options)?);
        let mut by_site = self.by_site();
        if by_site.len() >= CLIENTS_MAX {
            by_site.retain(|_, (_, client)| Arc::strong_count(client) > 1 || client.is_in_use());
        }
        if let Some((of, client)) = by_site.get(&access.site)
            && of == access
        {
            return Ok(client.clone());
        }
        by_site.insert(access.site.clone(), (access.clone(), made.clone()));
        Ok(made)
    }
}

#[async_trait]
impl MaasClients for Clients {
    fn client(&self, access: &MaasAccess) -> ProviderResult<Arc<dyn Maas>> {
        Ok(self.of(access)?)
    }

    async fn in_turn(&self, access: &MaasAccess, within: Duration) -> ProviderResult<Arc<dyn Maas>> {
        Ok(Arc::new(self.of(access)?.in_turn(within).await?))
    }

    fn is_resting(&self, site: &str) -> bool {
        self.by_site().get(site).is_some_and(|(_, client)| client.gate.is_resting())
    }
}
