//! For people who work on one machine's controller: the controller itself, discovery, passwords, pins.

use crate::controller::{endpoint_of, invalid};
use crate::datacenter::{Datacenter, Inner};
use crate::lane::For;
use async_trait::async_trait;
use domain::credential::{BmcLogin, Credential};
use domain::endpoint::{BmcProtocol, TlsTrust};
use domain::machine::{Labels, MachineSpec};
use domain::stage::FailureClass;
use domain::{MachineId, Reason, Secret};
use provider::{Ack, Bmc, Discovered, Management, Notes, Pin, ProviderError, ProviderResult, Target};

/// Long enough that nobody guesses it, short enough for every controller we know of (some IPMI ones keep 16 bytes).
const PASSWORD_CHARS: usize = 16;
/// Without those that a person confuses.
const ALPHABET: &[u8] = b"abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";

#[async_trait]
impl Management for Datacenter {
    async fn bmc(&self, target: &Target) -> ProviderResult<Box<dyn Bmc + '_>> {
        let (bmc, _) = self.inner.checked(target, For::Work).await?;
        Ok(Box::new(bmc))
    }

    async fn discover(&self, spec: &MachineSpec) -> ProviderResult<Discovered> {
        let mut spec = spec.clone();
        // nobody's yet: nothing is pinned for it but in the endpoint itself
        let target = |spec: &MachineSpec| Target {
            machine_id: MachineId::from_text(format!("discovery of {}", spec.bmc_endpoint)),
            labels: Labels::new(),
            spec: spec.clone(),
            notes: Notes::default(),
        };
        let endpoint = endpoint_of(&target(&spec))?;
        let over_tls = matches!(endpoint.protocol, BmcProtocol::Redfish | BmcProtocol::Any);
        if over_tls && endpoint.trust == TlsTrust::FirstContact {
            match self.inner.certificate_of(&endpoint, For::Work).await {
                Ok(shown) => {
                    spec.bmc_endpoint = format!("{}?tls=pin:{shown}", spec.bmc_endpoint.trim_end_matches('?'));
                }
                // it may speak IPMI only
                Err(e) if endpoint.protocol == BmcProtocol::Any && e.reason() != Reason::UntrustedCertificate => {}
                Err(e) => return Err(e),
            }
        }
        let description = self.inner.controller(&target(&spec), For::Work).await?.describe().await?;
        spec.serial_number.clone_from(&description.serial_number);
        spec.system_uuid.clone_from(&description.system_uuid);
        spec.mac_addresses =
            description.nics.iter().map(|nic| nic.mac_address.clone()).filter(|m| !m.is_empty()).collect();
        Ok(Discovered { description, spec })
    }

    async fn rotate_password(&self, target: &Target) -> ProviderResult<Ack> {
        let inner = &self.inner;
        let (bmc, _) = inner.checked(target, For::Work).await?;
        let (name, login) = inner.bmc_login(target).await?;
        let next = new_password()?;
        // durable before the controller hears of it: whatever happens, somebody knows the password
        let changing = Credential::BmcChanging { login: login.clone(), next: next.clone() };
        inner.keyring.replace(&name, &changing).await?;
        match bmc.set_password(&login.username, &next).await {
            Err(e @ ProviderError::Refused { .. }) => {
                inner.keyring.replace(&name, &Credential::Bmc(login)).await?;
                return Err(e);
            }
            // told or not, what counts is which of the two it takes
            Ok(_) | Err(ProviderError::Unknown { .. }) => {}
        }
        drop(bmc);
        inner.settle_password(target).await?;
        let (_, now) = inner.bmc_login(target).await?;
        if now.password == next {
            return Ok(Ack::Done);
        }
        let message = "the BMC said yes and still takes the old password only; nothing was changed";
        Err(ProviderError::refused(FailureClass::Hardware, message))
    }

    async fn repin(&self, target: &Target) -> ProviderResult<Ack> {
        // said by the endpoint itself, which only an update of the machine changes; host keys are learned all the same
        let spec = &target.spec;
        if !spec.bmc_endpoint.is_empty()
            && spec.ssh_endpoint.is_empty()
            && matches!(endpoint_of(target)?.trust, TlsTrust::Pinned(_))
        {
            let (plain, _) = spec.bmc_endpoint.split_once('?').unwrap_or((&spec.bmc_endpoint, ""));
            let message = format!(
                "the certificate of machine {id} is named by its spec.bmc_endpoint (tls=pin:…), not learned; to trust the \
                 one that is shown at the next contact: millwright machine update {id} --bmc {plain}",
                id = target.machine_id
            );
            return Err(invalid(message));
        }
        for pin in [Pin::BmcCertificate, Pin::SshHostKey, Pin::JumpHostKey] {
            self.inner.keyring.unpin(&target.machine_id, pin, "an admin asked for it").await?;
        }
        Ok(Ack::Done)
    }
}

fn new_password() -> ProviderResult<Secret> {
    let mut bytes = [0_u8; PASSWORD_CHARS * 2];
    getrandom::fill(&mut bytes)
        .map_err(|e| ProviderError::transient(format!("no random numbers from the system: {e}")))?;
    let letters = bytes.chunks(2).map(|pair| {
        let number = usize::from(u16::from_le_bytes([pair[0], pair[1]]));
        char::from(ALPHABET[number % ALPHABET.len()])
    });
    Ok(Secret::new(letters.collect::<String>()))
}

impl Inner {
    /// Finds out which password a controller takes whose password was being changed, and keeps that one.
    pub async fn settle_password(&self, target: &Target) -> ProviderResult<()> {
        let wanted = |credential| match credential {
            Credential::BmcChanging { login, next } => Some(Some((login, next))),
            Credential::Bmc(_) => Some(None),
            Credential::Ssh(_) | Credential::Kubeconfig(_) | Credential::Ca(_) => None,
        };
        let (name, changing) = self.login(target, "bmc", wanted).await?;
        let Some((old, next)) = changing else { return Ok(()) };
        let new = BmcLogin { username: old.username.clone(), password: next };
        for login in [new, old] {
            match self.by_login(target, &name, login.clone()).await?.state().await {
                Ok(_) => return self.keyring.replace(&name, &Credential::Bmc(login)).await,
                Err(e) if e.reason() == Reason::LoginRefused => {}
                Err(e) => return Err(e),
            }
        }
        Err(ProviderError::login_refused(&format!("the BMC of machine {}", target.machine_id), &name))
    }
}
