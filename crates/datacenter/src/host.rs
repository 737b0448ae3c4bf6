//! The system on a machine, over SSH: by which key it is known, and what a login shows.

use crate::controller::invalid;
use crate::datacenter::Inner;
use crate::lane::For;
use domain::credential::{Credential, SshLogin};
use domain::endpoint::{HostPort, SshEndpoint};
use domain::identity::another_machine;
use domain::stage::FailureClass;
use domain::{MachineId, Reason};
use provider::{ExecProgress, Pin, ProviderError, ProviderResult, Target};
use ssh::{Host, HostIdentity, Jump, Places};
use std::sync::Arc;

/// What a way to a host was made from.
#[derive(Clone, PartialEq)]
pub(crate) struct MadeFrom {
    endpoint: SshEndpoint,
    login: SshLogin,
    credential: String,
    host_key: String,
    jump_key: String,
}

/// A host and the lane to it.
pub(crate) struct Reached {
    pub host: Arc<Host>,
    pub at: HostPort,
}

pub(crate) fn endpoint_of(target: &Target) -> ProviderResult<SshEndpoint> {
    let text = &target.spec.ssh_endpoint;
    if text.is_empty() {
        let message = format!(
            "machine {id} cannot be reached by SSH: its spec.ssh_endpoint is empty; fill it in with 'millwright machine update {id} --ssh ENDPOINT'",
            id = target.machine_id
        );
        return Err(ProviderError::because(Reason::CapabilityMissing, FailureClass::InvalidInput, message));
    }
    SshEndpoint::parse(text).map_err(|e| invalid(format!("spec.ssh_endpoint of machine {}: {e}", target.machine_id)))
}

impl Inner {
    /// The way to the machine's system. At first contact the key it shows is pinned, before anybody logs in.
    pub async fn host(&self, target: &Target, whom: For) -> ProviderResult<Reached> {
        let endpoint = endpoint_of(target)?;
        let (credential, login) = self.ssh_login(target).await?;
        let jump = self.jump(target, &endpoint, &credential, &login, whom).await?;
        let host_key = self.key_of(target, Pin::SshHostKey, &endpoint.at, jump.as_ref(), whom).await?;
        let jump_key = jump.as_ref().map_or(String::new(), |jump| jump.host_key.clone());
        let at = endpoint.at.clone();
        let from = MadeFrom { endpoint, login, credential, host_key, jump_key };
        let host = self.hosts.get(&target.machine_id, &from).unwrap_or_else(|| {
            let MadeFrom { endpoint, login, credential, host_key, .. } = from.clone();
            let timeouts = self.options.ssh_timeouts(jump.is_some());
            let host = Host::new(endpoint.at, login, &credential, host_key, jump, timeouts);
            self.hosts.put(&target.machine_id, from, Arc::new(host))
        });
        Ok(Reached { host, at })
    }

    async fn ssh_login(&self, target: &Target) -> ProviderResult<(String, SshLogin)> {
        let wanted = |credential| match credential {
            Credential::Ssh(login) => Some(login),
            Credential::Bmc(_)
            | Credential::BmcChanging { .. }
            | Credential::Kubeconfig(_)
            | Credential::Ca(_)
            | Credential::UserData(_)
            | Credential::Maas(_) => None,
        };
        self.login(target, "ssh", wanted).await
    }

    /// The host on the way, if there is one.
    async fn jump(
        &self,
        target: &Target,
        endpoint: &SshEndpoint,
        credential: &str,
        login: &SshLogin,
        whom: For,
    ) -> ProviderResult<Option<Jump>> {
        let Some(at) = &endpoint.jump else { return Ok(None) };
        let host_key = self.key_of(target, Pin::JumpHostKey, at, None, whom).await?;
        let name = at.to_string();
        let places = self
            .jumps
            .get(&name, &())
            .unwrap_or_else(|| self.jumps.put(&name, (), Places::new(self.options.jump_connections)));
        let (at, login, credential_name) = (at.clone(), login.clone(), credential.to_owned());
        Ok(Some(Jump { at, login, credential_name, host_key, places }))
    }

    async fn key_of(
        &self,
        target: &Target,
        pin: Pin,
        at: &HostPort,
        jump: Option<&Jump>,
        whom: For,
    ) -> ProviderResult<String> {
        let (machine, text) = (&target.machine_id, at.to_string());
        if let Some(pinned) = self.keyring.pinned(machine, pin, &text).await? {
            return Ok(pinned);
        }
        let limit = self.options.call_timeout;
        let asked = ssh::host_key_of(at, jump, limit);
        let shown = self.ssh.call(&self.ssh.to(&text), whom, limit, asked).await?;
        let pinned = self.keyring.pin(machine, pin, &text, &shown).await?;
        target.notes.add(format!("first contact: the host key of {text} is pinned, {pinned}"));
        Ok(pinned)
    }

    /// A call to the host, in its turn.
    pub async fn on_host<T>(
        &self,
        reached: &Reached,
        whom: For,
        call: impl Future<Output = ProviderResult<T>>,
    ) -> ProviderResult<T> {
        self.ssh.call(&self.ssh.to(&reached.at.to_string()), whom, self.options.call_timeout, call).await
    }

    /// Who the system says it is. Another machine's system is nobody's.
    pub async fn reading(&self, target: &Target, whom: For) -> ProviderResult<HostIdentity> {
        let reached = self.host(target, whom).await?;
        let seen = self.on_host(&reached, whom, reached.host.identity()).await?;
        match another_machine(&target.spec, &seen.serial_number, &seen.system_uuid) {
            None => Ok(seen),
            Some(message) => {
                let at = &reached.at;
                Err(ProviderError::wrong_machine(format!("the host at {at} (spec.ssh_endpoint): {message}")))
            }
        }
    }

    /// Whether somebody answers at the machine's SSH endpoint. No login there; at a jump host on the way there is one.
    pub async fn answers(&self, target: &Target, whom: For) -> ProviderResult<()> {
        let endpoint = endpoint_of(target)?;
        let lane = self.ssh.to(&endpoint.at.to_string());
        if endpoint.jump.is_none() {
            let limit = self.options.connect_timeout;
            return self.ssh.call(&lane, whom, limit, ssh::answers(&endpoint.at, limit)).await;
        }
        let (credential, login) = self.ssh_login(target).await?;
        let Some(jump) = self.jump(target, &endpoint, &credential, &login, whom).await? else { return Ok(()) };
        let limit = self.options.call_timeout;
        // it says itself which of the two did not answer
        let asked = ssh::answers_by_way_of(&endpoint.at, &jump, limit * 9 / 10);
        self.ssh.call(&lane, whom, limit, asked).await
    }

    /// After a reinstallation the host has another key, and that is as it should be.
    pub async fn repin_host(&self, machine: &MachineId, why: &str) -> ProviderResult<()> {
        self.hosts.forget(machine);
        self.keyring.unpin(machine, Pin::SshHostKey, why).await
    }
}

/// The last lines that a command has printed, for a message: they mostly say why it ended.
pub(crate) fn last_words(progress: &ExecProgress) -> String {
    let said: Vec<u8> = progress.output.iter().flat_map(|chunk| chunk.data.clone()).collect();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.trim().lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" / ")
}

/// Whether this says that the system does not answer, rather than that it will not have us.
pub(crate) fn is_down(e: &ProviderError) -> bool {
    matches!(e.reason(), Reason::Unreachable | Reason::ConnectionRefused | Reason::ProviderSilent | Reason::CircuitOpen)
}
