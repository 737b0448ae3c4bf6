//! Who drives the machines: the one for real hardware, those whose machines a MAAS manages, and simulated fleets where they
//! are asked for.

use crate::config::{Config, ImageSource, Provider, ProviderKind};
use async_trait::async_trait;
use datacenter::{Datacenter, Image, Options};
use domain::Reason;
use domain::site::{Site, SiteState};
use domain::stage::FailureClass;
use maas::{MaasProvider, SiteSource};
use provider::{MaasClients, ProviderError, ProviderResult, Providers};
use service::Vault;
use sim::SimFleet;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::{Ambient, Store};

/// The name of the provider for real machines; it is there unless it is switched off.
pub const DATACENTER: &str = "datacenter";
const SIM: &str = "sim";

/// What providers are made of.
pub struct Parts<'a> {
    pub store: &'a Store,
    pub data: &'a Path,
    pub ambient: &'a Arc<dyn Ambient>,
    pub vault: &'a Vault,
    pub netboot: Arc<dyn provider::Netboot>,
    pub sites: Arc<dyn MaasClients>,
}

/// The sites as they are stored by now.
struct Stored(Store);

#[async_trait]
impl SiteSource for Stored {
    async fn site(&self, name: &str) -> ProviderResult<Site> {
        let wanted = name.to_owned();
        let found = self.0.read(move |tx| tx.point(&store::site::by_name(&wanted))).await.map_err(|e| {
            let message = format!("reading site {name}: {e}");
            ProviderError::because(Reason::StoreUnavailable, FailureClass::DependencyDown, message)
        })?;
        found.filter(|site| site.state == SiteState::Present).ok_or_else(|| {
            let message = format!(
                "there is no site {name:?}, which the configuration names for these machines; 'millwright site create {name} --url URL --credential NAME'"
            );
            ProviderError::refused(FailureClass::NeedsOperator, message)
        })
    }
}

pub fn configured(config: &Config, sim_asked_for: bool, parts: Parts<'_>) -> Result<Providers, String> {
    let Parts { store, data, ambient, vault, netboot, sites } = parts;
    let mut providers = Providers::default();
    if config.datacenter.enabled {
        let keyring = Arc::new(vault.clone());
        let datacenter = Datacenter::with_netboot(datacenter_options(config)?, keyring, netboot);
        providers = providers.with(DATACENTER, Arc::new(datacenter));
    }
    let mut simulated: Vec<(String, Provider)> = Vec::new();
    let stored: Arc<dyn SiteSource> = Arc::new(Stored(store.clone()));
    let call_timeout = Duration::from_secs(config.engine.call_timeout_seconds);
    for (name, provider) in &config.providers {
        let asked_for = name == SIM && sim_asked_for;
        if !provider.enabled.unwrap_or(true) && !asked_for {
            continue;
        }
        match provider.kind(name)? {
            ProviderKind::Sim => simulated.push((name.clone(), provider.clone())),
            ProviderKind::Maas => {
                let keyring = Arc::new(vault.clone());
                let by_maas = MaasProvider::new(&provider.site, stored.clone(), sites.clone(), keyring, call_timeout);
                providers = providers.with(name, Arc::new(by_maas));
            }
        }
    }
    if sim_asked_for && !config.providers.contains_key(SIM) {
        simulated.push((SIM.to_owned(), Provider::default()));
    }
    for (name, provider) in simulated {
        let journal = provider.journal.unwrap_or_else(|| data.join(format!("{name}-world.jsonl")));
        let clock = ambient.clone();
        let fleet = SimFleet::open(&journal, provider.seed, Arc::new(move || clock.now()))
            .map_err(|e| format!("opening the simulated fleet {}: {e}", journal.display()))?;
        providers = providers.with(&name, Arc::new(fleet));
    }
    Ok(providers)
}

fn datacenter_options(config: &Config) -> Result<Options, String> {
    let datacenter = &config.datacenter;
    // a call must end before the engine gives it up, and a look before its sweep does
    let within = config.engine.call_timeout_seconds.min(config.observe.timeout_seconds);
    let call_timeout = Duration::from_secs(within) * 8 / 10;
    Ok(Options {
        call_timeout,
        connect_timeout: (call_timeout / 3).min(Options::default().connect_timeout),
        redfish_calls: datacenter.redfish_calls,
        ipmi_calls: datacenter.ipmi_calls,
        ssh_calls: datacenter.ssh_calls,
        images: images(config)?,
        ..Options::default()
    })
}

/// The configured images, scripts read from their files.
pub fn images(config: &Config) -> Result<BTreeMap<String, Image>, String> {
    let read = |(name, image): (&String, &ImageSource)| {
        // it is one word of a record, and of /etc/millwright-image
        domain::id::check_name("images", name).map_err(|e| format!("images.{name:?}: {}", e.message))?;
        let image = match (&image.media, &image.script) {
            (Some(url), None) => {
                let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
                if !matches!(scheme, "http" | "https") || rest.is_empty() || rest.contains('@') {
                    return Err(format!(
                        "images.{name}.media: is not a URL such as https://images.example/install.iso, without a user in it"
                    ));
                }
                Image::Media { url: url.clone() }
            }
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|e| format!("images.{name}.script: reading {}: {e}", path.display()))?;
                Image::Script { text }
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(format!("images.{name}: wants either media (a URL) or script (a file)"));
            }
        };
        Ok((name.clone(), image))
    };
    config.images.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_cannot_be_used_are_named() {
        for (name, media, script) in [
            ("a", None, None),
            ("a", Some("https://h/x.iso"), Some("/x.sh")),
            ("a", Some("x.iso"), None),
            ("a", Some("https://u:geheim@h/x.iso"), None),
            ("a", None, Some("/nowhere/x.sh")),
            ("a b", Some("https://h/x.iso"), None),
        ] {
            let mut config = Config::default();
            let source = ImageSource { media: media.map(str::to_owned), script: script.map(Into::into) };
            config.images.insert(name.to_owned(), source);
            let error = images(&config).expect_err(name);
            assert!(error.starts_with("images.") && !error.contains("geheim"), "{error}");
        }
    }
}
