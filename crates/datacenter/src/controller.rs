//! Which controller a machine has, how it is spoken to, and by which certificate it is known.

use crate::datacenter::Inner;
use crate::guarded::{Controller, Guarded};
use crate::lane::For;
use domain::credential::{BmcLogin, Credential};
use domain::endpoint::{BmcEndpoint, BmcProtocol, HostPort, IPMI_PORT, TlsTrust};
use domain::identity::another_machine;
use domain::stage::FailureClass;
use domain::{MachineId, Reason};
use provider::{Bmc, BmcState, Pin, ProviderError, ProviderResult, Target};
use redfish::{Redfish, Trust};
use std::sync::Arc;

/// What a controller was made from. Another endpoint, login or certificate makes another controller.
#[derive(Clone, PartialEq)]
pub(crate) struct MadeFrom {
    endpoint: BmcEndpoint,
    trust: Trust,
    login: BmcLogin,
    credential: String,
}

pub(crate) fn invalid(message: String) -> ProviderError {
    ProviderError::because(Reason::InvalidField, FailureClass::InvalidInput, message)
}

pub(crate) fn endpoint_of(target: &Target) -> ProviderResult<BmcEndpoint> {
    let text = &target.spec.bmc_endpoint;
    if text.is_empty() {
        let message = format!(
            "machine {id} has no BMC to ask: its spec.bmc_endpoint is empty; fill it in with 'millwright machine update {id} --bmc ENDPOINT'",
            id = target.machine_id
        );
        return Err(ProviderError::because(Reason::CapabilityMissing, FailureClass::InvalidInput, message));
    }
    BmcEndpoint::parse(text).map_err(|e| invalid(format!("spec.bmc_endpoint of machine {}: {e}", target.machine_id)))
}

impl Inner {
    /// The controller of this machine. That it is this machine's is for [`Self::checked`] to say.
    pub async fn controller(&self, target: &Target, whom: For) -> ProviderResult<Guarded> {
        let endpoint = endpoint_of(target)?;
        let (credential, login) = self.settled_login(target).await?;
        let endpoint = self.spoken(target, endpoint, whom).await?;
        let trust = self.trust(target, &endpoint, whom).await?;
        Ok(self.made(&target.machine_id, MadeFrom { endpoint, trust, login, credential }, whom))
    }

    /// The controller, once it has said that it is this machine's.
    pub async fn checked(&self, target: &Target, whom: For) -> ProviderResult<(Guarded, BmcState)> {
        let bmc = self.controller(target, whom).await?;
        let state = bmc.state().await?;
        match another_machine(&target.spec, &state.serial_number, &state.system_uuid) {
            None => Ok((bmc, state)),
            Some(message) => Err(ProviderError::wrong_machine(format!("{}: {message}", bmc.name()))),
        }
    }

    /// The controller by this login.
    pub async fn by_login(&self, target: &Target, credential: &str, login: BmcLogin) -> ProviderResult<Guarded> {
        let endpoint = self.spoken(target, endpoint_of(target)?, For::Work).await?;
        let trust = self.trust(target, &endpoint, For::Work).await?;
        let from = MadeFrom { endpoint, trust, login, credential: credential.to_owned() };
        Ok(self.made(&target.machine_id, from, For::Work))
    }

    pub fn made(&self, machine: &MachineId, from: MadeFrom, whom: For) -> Guarded {
        let at = from.endpoint.at().to_string();
        let lanes = match from.endpoint.protocol {
            BmcProtocol::Ipmi => &self.ipmi,
            BmcProtocol::Redfish | BmcProtocol::RedfishPlain | BmcProtocol::Any => &self.redfish,
        };
        let bmc = self.controllers.get(machine, &from).unwrap_or_else(|| {
            let made = Controller::new(self.make(&from), lanes, &at, &self.options);
            self.controllers.put(machine, from, made)
        });
        self.controllers.forget_unused(self.options.forget_after);
        Guarded::new(bmc, whom, &self.options)
    }

    fn make(&self, from: &MadeFrom) -> Arc<dyn Bmc> {
        let MadeFrom { endpoint, trust, login, credential } = from.clone();
        let o = &self.options;
        match endpoint.protocol {
            BmcProtocol::Ipmi => {
                let timeouts = ipmi::Timeouts { presence: o.connect_timeout, call: o.call_timeout };
                Arc::new(ipmi::Ipmi::new(&endpoint, login, &credential, timeouts))
            }
            BmcProtocol::Redfish | BmcProtocol::RedfishPlain | BmcProtocol::Any => {
                Arc::new(Redfish::new(&endpoint, trust, login, &credential, o.redfish_timeouts()))
            }
        }
    }
}

impl Inner {
    /// The first credential of the wanted kind among those that the machine names.
    pub async fn login<T>(
        &self,
        target: &Target,
        kind: &str,
        wanted: impl Fn(Credential) -> Option<T>,
    ) -> ProviderResult<(String, T)> {
        let named = &target.spec.credentials_ref;
        for name in domain::credential::names(named) {
            if let Some(login) = wanted(self.keyring.credential(name).await?) {
                return Ok((name.to_owned(), login));
            }
        }
        Err(ProviderError::credential_missing(format!(
            "machine {} names no credential of kind {kind} in spec.credentials_ref ({named:?}); make one with \
             'millwright credential set NAME --kind {kind}' and name it there",
            target.machine_id
        )))
    }

    /// The endpoint with the protocol decided. A machine that says nothing is asked by Redfish first; what was
    /// found is kept, so that a controller that is away for a moment is not spoken to in another way.
    pub async fn spoken(&self, target: &Target, endpoint: BmcEndpoint, whom: For) -> ProviderResult<BmcEndpoint> {
        if endpoint.protocol != BmcProtocol::Any {
            return Ok(endpoint);
        }
        let redfish = BmcEndpoint { protocol: BmcProtocol::Redfish, ..endpoint.clone() };
        if self.is_known_by_certificate(target, &endpoint).await? {
            return Ok(redfish);
        }
        if let Some(found) = self.protocols.get(&target.machine_id, &endpoint) {
            return Ok(found);
        }
        let (at, limit) = (endpoint.at(), self.options.call_timeout);
        let asked = redfish::is_there(&redfish, Trust::Insecure);
        let no = match self.redfish.call(&self.redfish.to(&at.to_string()), whom, limit, asked).await {
            Ok(true) => return Ok(self.protocols.put(&target.machine_id, endpoint, redfish)),
            Ok(false) => None,
            Err(e) => match e.reason() {
                Reason::Unreachable | Reason::ConnectionRefused | Reason::ProviderSilent => Some(e),
                _ => return Err(e),
            },
        };
        let by_ipmi = HostPort { host: endpoint.host.clone(), port: IPMI_PORT };
        let asked = ipmi::is_there(&by_ipmi, self.options.connect_timeout);
        let answers = self.ipmi.call(&self.ipmi.to(&by_ipmi.to_string()), whom, limit, asked).await;
        match (answers, no) {
            (Ok(true), _) => {
                target.notes.add(format!("no Redfish at {at}: its BMC is spoken to by IPMI at {by_ipmi}"));
                let ipmi = BmcEndpoint { protocol: BmcProtocol::Ipmi, port: IPMI_PORT, ..endpoint.clone() };
                Ok(self.protocols.put(&target.machine_id, endpoint, ipmi))
            }
            (Ok(false) | Err(_), Some(e)) => Err(e),
            (Ok(false) | Err(_), None) => {
                let what = format!("what answers at {at}");
                Err(ProviderError::capability_missing(&what, "Redfish, and IPMI does not answer there either"))
            }
        }
    }

    /// What has shown a certificate once is never spoken to by IPMI instead, where anybody who can block the one
    /// could have the password's hash by the other.
    async fn is_known_by_certificate(&self, target: &Target, endpoint: &BmcEndpoint) -> ProviderResult<bool> {
        if endpoint.trust != TlsTrust::FirstContact {
            return Ok(true);
        }
        let at = endpoint.at().to_string();
        Ok(self.keyring.pinned(&target.machine_id, Pin::BmcCertificate, &at).await?.is_some())
    }

    /// By which certificate the controller is known. At the first contact what it shows is pinned, before any
    /// password is sent.
    async fn trust(&self, target: &Target, endpoint: &BmcEndpoint, whom: For) -> ProviderResult<Trust> {
        match endpoint.protocol {
            BmcProtocol::RedfishPlain | BmcProtocol::Ipmi => return Ok(Trust::Plain),
            BmcProtocol::Redfish | BmcProtocol::Any => {}
        }
        match &endpoint.trust {
            TlsTrust::Pinned(fingerprint) => Ok(Trust::Pinned(fingerprint.clone())),
            TlsTrust::Insecure => Ok(Trust::Insecure),
            TlsTrust::Ca(name) => match self.keyring.credential(name).await? {
                Credential::Ca(pem) => Ok(Trust::Ca(pem)),
                other => Err(ProviderError::credential_missing(format!(
                    "spec.bmc_endpoint of machine {} trusts credential {name:?}, which is of kind {}, not ca",
                    target.machine_id,
                    other.kind()
                ))),
            },
            TlsTrust::FirstContact => {
                let (at, machine) = (endpoint.at().to_string(), &target.machine_id);
                if let Some(pinned) = self.keyring.pinned(machine, Pin::BmcCertificate, &at).await? {
                    return Ok(Trust::Pinned(pinned));
                }
                let shown = self.certificate_of(endpoint, whom).await?;
                let pinned = self.keyring.pin(machine, Pin::BmcCertificate, &at, &shown).await?;
                target.notes.add(format!("first contact: the certificate of {at} is pinned, SHA-256 {pinned}"));
                Ok(Trust::Pinned(pinned))
            }
        }
    }

    pub async fn certificate_of(&self, endpoint: &BmcEndpoint, whom: For) -> ProviderResult<String> {
        let limit = self.options.call_timeout;
        let asked = redfish::certificate_of(endpoint, limit);
        self.redfish.call(&self.redfish.to(&endpoint.at().to_string()), whom, limit, asked).await
    }
}
