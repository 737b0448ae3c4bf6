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
use provider::{
    Ack, Because, Bmc, BmcState, By, Discovered, Management, Notes, Pin, ProviderError, ProviderResult, Swap, Target,
};

/// Long enough that nobody guesses it, short enough for every controller we know of (some IPMI ones keep 16 bytes).
const PASSWORD_CHARS: usize = 16;
/// Without those that a person confuses.
const ALPHABET: &[u8] = b"abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";

#[async_trait]
impl Management for Datacenter {
    async fn bmc(&self, target: &Target) -> ProviderResult<(Box<dyn Bmc + '_>, BmcState)> {
        let (bmc, state) = self.inner.checked(target, For::Work).await?;
        Ok((Box::new(bmc), state))
    }

    async fn discover(&self, spec: &MachineSpec) -> ProviderResult<Discovered> {
        let mut spec = spec.clone();
        // nobody's yet: nothing is pinned for it but in the endpoint itself
        let nobody = MachineId::from_text(format!("discovery of {}", spec.bmc_endpoint));
        let target = |spec: &MachineSpec| Target {
            machine_id: nobody.clone(),
            labels: Labels::new(),
            spec: spec.clone(),
            notes: Notes::default(),
            by: By::System,
        };
        let found = self.inner.spoken(&target(&spec), endpoint_of(&target(&spec))?, For::Work).await?;
        if found.protocol == BmcProtocol::Redfish && found.trust == TlsTrust::FirstContact {
            let shown = self.inner.certificate_of(&found, For::Work).await?;
            spec.bmc_endpoint = format!("{}?tls=pin:{shown}", spec.bmc_endpoint.trim_end_matches('?'));
        }
        let described = match self.inner.controller(&target(&spec), For::Work).await {
            Ok(bmc) => bmc.describe().await,
            Err(e) => Err(e),
        };
        self.inner.controllers.forget(&nobody);
        self.inner.protocols.forget(&nobody);
        let description = described?;
        spec.serial_number.clone_from(&description.serial_number);
        spec.system_uuid.clone_from(&description.system_uuid);
        spec.mac_addresses =
            description.nics.iter().map(|nic| nic.mac_address.clone()).filter(|m| !m.is_empty()).collect();
        Ok(Discovered { description, spec })
    }

    async fn rotate_password(&self, target: &Target) -> ProviderResult<Ack> {
        let inner = &self.inner;
        inner.checked(target, For::Work).await?;
        let (name, _) = inner.settled_login(target).await?;
        // nobody else settles or changes it meanwhile, and what is changed is what is kept now
        let _turn = inner.passwords.of(&name).lock().await;
        let PasswordChange { name, login, next, begun_by_us } = inner.to_be_changed(target).await?;
        let bmc = inner.by_login(target, &name, login.clone()).await?;
        let changing = Credential::BmcChanging { login: login.clone(), next: next.password.clone() };
        let told = bmc.set_password(&login.username, &next.password).await;
        if let Err(e) = &told
            && is_before_the_act(e)
        {
            // what another has begun may be on its way to the controller; and whoever has kept something since knows
            // better than we do
            if begun_by_us {
                let _ = inner.keyring.replace(&name, &changing, &Credential::Bmc(login)).await?;
            }
            return Err(e.clone());
        }
        // whatever it said, what counts is which of the two it takes
        if inner.takes(target, &name, &next).await? {
            inner.keep_proven(&name, &login, &next).await?;
            return Ok(Ack::Done);
        }
        let said = match told {
            Ok(_) => "it said yes".to_owned(),
            Err(e) => e.to_string(),
        };
        Err(ProviderError::unknown(format!(
            "the BMC does not take the new password yet ({said}); both are kept, and whichever it takes is used"
        )))
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
        let because = Because { by: &target.by, why: "an admin asked for it" };
        let learned = [Pin::BmcCertificate, Pin::SshHostKey, Pin::JumpHostKey];
        self.inner.keyring.forget(&target.machine_id, &learned, because).await?;
        // also the way out when an installation was left open and nobody will ever see its end
        self.inner.close_installation(target, "an admin asked for it").await?;
        self.inner.protocols.forget(&target.machine_id);
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

/// One change of a password at a time. Credentials share a few locks: changes are rare and short.
#[derive(Default)]
pub(crate) struct Passwords([tokio::sync::Mutex<()>; 32]);

impl Passwords {
    fn of(&self, credential: &str) -> &tokio::sync::Mutex<()> {
        let number = credential.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        &self.0[number % self.0.len()]
    }
}

/// Whether this says that the controller was never told, or has said no for good. That it failed says neither.
fn is_before_the_act(e: &ProviderError) -> bool {
    let for_good = |class: FailureClass| match class {
        FailureClass::InvalidInput | FailureClass::NeedsOperator | FailureClass::Conflict => true,
        FailureClass::Transient | FailureClass::DependencyDown | FailureClass::Hardware => false,
    };
    if let ProviderError::Refused { reason: Reason::ProviderRefused, class, .. } = e {
        return for_good(*class);
    }
    matches!(
        e.reason(),
        Reason::CapabilityMissing
            | Reason::UntrustedCertificate
            | Reason::Unreachable
            | Reason::ConnectionRefused
            | Reason::CircuitOpen
            | Reason::EndpointBusy
            | Reason::InvalidField
    )
}

struct PasswordChange {
    /// Of the credential.
    name: String,
    login: BmcLogin,
    next: BmcLogin,
    /// Or it was found begun.
    begun_by_us: bool,
}

/// Several servers may be at one credential. Whoever is overtaken looks again; so often in a row nobody is.
const LOOKS_AGAIN: usize = 8;

fn overtaken(name: &str) -> ProviderError {
    ProviderError::transient(format!("credential {name} is being changed by several at once; try again"))
}

impl Inner {
    /// The login of the machine's controller and the one that it is to have: durable before the controller hears of
    /// it, so that somebody knows the password whatever happens. A new password that is kept already is taken up:
    /// the controller may have been told it, by us in another life or by another server in this moment.
    async fn to_be_changed(&self, target: &Target) -> ProviderResult<PasswordChange> {
        let wanted = |credential| match credential {
            Credential::Bmc(login) => Some((login, None)),
            Credential::BmcChanging { login, next } => Some((login, Some(next))),
            Credential::Ssh(_)
            | Credential::Kubeconfig(_)
            | Credential::Ca(_)
            | Credential::UserData(_)
            | Credential::Maas(_) => None,
        };
        for _ in 0..LOOKS_AGAIN {
            let (name, (login, next)) = self.login(target, "bmc", wanted).await?;
            let username = login.username.clone();
            let with = |password: Secret| BmcLogin { username, password };
            if let Some(next) = next {
                let next = with(next);
                return Ok(PasswordChange { name, login, next, begun_by_us: false });
            }
            let next = with(new_password()?);
            let changing = Credential::BmcChanging { login: login.clone(), next: next.password.clone() };
            match self.keyring.replace(&name, &Credential::Bmc(login.clone()), &changing).await? {
                Swap::Kept => return Ok(PasswordChange { name, login, next, begun_by_us: true }),
                Swap::Overtaken => {}
            }
        }
        Err(overtaken(&target.spec.credentials_ref))
    }

    /// Keeps the new login, which the controller has just taken. In the place of the old one or of the change to it
    /// only: whatever else is kept by now is newer than what we know.
    async fn keep_proven(&self, name: &str, old: &BmcLogin, new: &BmcLogin) -> ProviderResult<()> {
        for _ in 0..LOOKS_AGAIN {
            let read = self.keyring.credential(name).await?;
            let ours = match &read {
                Credential::Bmc(login) => login == old,
                Credential::BmcChanging { login, next } => login == old && *next == new.password,
                Credential::Ssh(_)
                | Credential::Kubeconfig(_)
                | Credential::Ca(_)
                | Credential::UserData(_)
                | Credential::Maas(_) => false,
            };
            if !ours {
                return Ok(());
            }
            match self.keyring.replace(name, &read, &Credential::Bmc(new.clone())).await? {
                Swap::Kept => return Ok(()),
                Swap::Overtaken => {}
            }
        }
        Err(overtaken(name))
    }

    /// The login that the machine's controller takes. If its password was being changed and nobody knows how that
    /// ended, the old one is used as long as it works; once only the new one does, that is kept.
    pub async fn settled_login(&self, target: &Target) -> ProviderResult<(String, BmcLogin)> {
        let wanted = |credential| match credential {
            Credential::Bmc(login) => Some((login, None)),
            Credential::BmcChanging { login, next } => Some((login, Some(next))),
            Credential::Ssh(_)
            | Credential::Kubeconfig(_)
            | Credential::Ca(_)
            | Credential::UserData(_)
            | Credential::Maas(_) => None,
        };
        let (name, (login, next)) = self.login(target, "bmc", wanted).await?;
        if next.is_none() {
            return Ok((name, login));
        }
        // whoever is changing it now comes first
        let _turn = self.passwords.of(&name).lock().await;
        let (name, (old, next)) = self.login(target, "bmc", wanted).await?;
        let Some(next) = next else { return Ok((name, old)) };
        if self.takes(target, &name, &old).await? {
            return Ok((name, old));
        }
        let new = BmcLogin { username: old.username.clone(), password: next };
        if !self.takes(target, &name, &new).await? {
            return Err(ProviderError::login_refused(&format!("the BMC of machine {}", target.machine_id), &name));
        }
        self.keep_proven(&name, &old, &new).await?;
        Ok((name, new))
    }

    async fn takes(&self, target: &Target, name: &str, login: &BmcLogin) -> ProviderResult<bool> {
        match self.by_login(target, name, login.clone()).await?.state().await {
            Ok(_) => Ok(true),
            Err(e) if e.reason() == Reason::LoginRefused => Ok(false),
            Err(e) => Err(e),
        }
    }
}
