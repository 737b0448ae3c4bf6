//! Credentials: set, list, delete, and seal under another key. What they hold goes in and never comes out here.

use crate::change::Answer;
use crate::machines::required;
use crate::vault::{Vault, same_kind, sealed_under, written};
use crate::{Call, Page, PageRequest, Service, kubeconfig};
use domain::credential::{
    self as credentials, BmcLogin, CHANGED, CREATED, Credential, CredentialKind, CredentialRecord, CredentialState,
    DELETED, SshLogin, not_found,
};
use domain::id::check_name;
use domain::{Error, Reason, Secret};
use std::sync::Arc;
use store::{Caller, Cause, Tx, TxResult, credential, site};
use x509_parser::pem::Pem;

/// Rows that are sealed again in one transaction.
const BATCH: usize = 100;

/// What a caller sent: the fields of all kinds, of which only those of one may be set.
#[derive(Clone, Debug, Default)]
pub struct NewCredential {
    pub name: String,
    pub kind: String,
    pub username: String,
    pub password: Secret,
    pub private_key: Secret,
    pub passphrase: Secret,
    pub kubeconfig: Secret,
    pub certificates: String,
    pub user_data: Secret,
    pub api_key: Secret,
}

/// A credential as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialView {
    pub record: CredentialRecord,
    /// How many machines name it.
    pub machines: u64,
}

/// What came of sealing everything under the current key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRotation {
    pub key_id: String,
    /// By this call; the agents' authority counts as one.
    pub resealed: u64,
    /// Under the current key by now.
    pub sealed: u64,
    /// Those that could not be opened, and stay as they are.
    pub left: Vec<CredentialRecord>,
}

impl NewCredential {
    fn credential(&self) -> Result<Credential, Error> {
        let kind = CredentialKind::parse("kind", &self.kind)?;
        let belongs: &[&str] = match kind {
            CredentialKind::Bmc => &["username", "password"],
            CredentialKind::Ssh => &["username", "private_key", "passphrase"],
            CredentialKind::Kubeconfig => &["kubeconfig"],
            CredentialKind::Ca => &["certificates"],
            CredentialKind::UserData => &["user_data"],
            CredentialKind::Maas => &["api_key"],
        };
        for (field, given) in [
            ("username", !self.username.is_empty()),
            ("password", !self.password.is_empty()),
            ("private_key", !self.private_key.is_empty()),
            ("passphrase", !self.passphrase.is_empty()),
            ("kubeconfig", !self.kubeconfig.is_empty()),
            ("certificates", !self.certificates.is_empty()),
            ("user_data", !self.user_data.is_empty()),
            ("api_key", !self.api_key.is_empty()),
        ] {
            if given && !belongs.contains(&field) {
                let problem =
                    format!("does not belong to a credential of kind {kind}, which has {}", belongs.join(", "));
                return Err(Error::field(field, problem));
            }
        }
        let credential = match kind {
            CredentialKind::Bmc => {
                Credential::Bmc(BmcLogin { username: self.username.clone(), password: self.password.clone() })
            }
            CredentialKind::Ssh => Credential::Ssh(SshLogin {
                username: self.username.clone(),
                private_key: self.private_key.clone(),
                passphrase: self.passphrase.clone(),
            }),
            CredentialKind::Kubeconfig => Credential::Kubeconfig(self.kubeconfig.clone()),
            CredentialKind::Ca => Credential::Ca(self.certificates.clone()),
            CredentialKind::UserData => Credential::UserData(self.user_data.clone()),
            CredentialKind::Maas => Credential::Maas(self.api_key.clone()),
        };
        credential.check()?;
        match &credential {
            Credential::Kubeconfig(text) => kubeconfig::check(text.reveal())?,
            Credential::Ca(pem) => check_certificates(pem)?,
            Credential::Bmc(_)
            | Credential::BmcChanging { .. }
            | Credential::Ssh(_)
            | Credential::UserData(_)
            | Credential::Maas(_) => {}
        }
        Ok(credential)
    }
}

fn check_certificates(text: &str) -> Result<(), Error> {
    for (i, pem) in Pem::iter_from_buffer(text.as_bytes()).enumerate() {
        let good = pem.is_ok_and(|pem| pem.parse_x509().is_ok());
        if !good {
            return Err(Error::field("certificates", format!("number {} cannot be read as a certificate", i + 1)));
        }
    }
    Ok(())
}

impl Answer for CredentialView {
    fn id(&self) -> String {
        self.record.name.clone()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        view(tx, id)
    }
}

impl Answer for KeyRotation {
    fn id(&self) -> String {
        self.key_id.clone()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        rotation(tx, id, 0)
    }
}

/// As it is in this transaction; also one that was deleted.
fn view(tx: &mut Tx<'_>, name: &str) -> TxResult<CredentialView> {
    let there = tx.point(&credential::by_name(name))?.ok_or_else(|| not_found(name))?;
    let machines = credential::uses(tx)?.get(name).copied().unwrap_or(0);
    Ok(CredentialView { record: there.record, machines })
}

fn rotation(tx: &mut Tx<'_>, key_id: &str, resealed: u64) -> TxResult<KeyRotation> {
    let left = credential::under_other_keys(tx, key_id, "", BATCH)?.into_iter().map(|there| there.record).collect();
    let sealed = sealed_under(tx)?.get(key_id).copied().unwrap_or(0);
    Ok(KeyRotation { key_id: key_id.to_owned(), resealed, sealed, left })
}

/// Whether a machine may name these: well formed, and all there, and they stay there while it does. Names that it has
/// had are left alone.
pub(crate) fn check_named(tx: &mut Tx<'_>, had: &str, named: &str) -> TxResult<()> {
    if had == named {
        return Ok(());
    }
    credentials::check_ref("spec.credentials_ref", named)?;
    for name in credentials::names(named).filter(|name| !credentials::names(had).any(|had| had == *name)) {
        if !credential::hold(tx, name)? {
            return Err(not_found(name).with("field", "spec.credentials_ref").into());
        }
    }
    Ok(())
}

impl Service {
    pub fn vault(&self) -> &Vault {
        &self.inner.vault
    }

    /// Keeps a credential under a name, in the place of the one that was there.
    pub async fn set_credential(&self, call: &Arc<Call>, new: NewCredential) -> Result<CredentialView, Error> {
        check_name("name", &new.name)?;
        let content = new.credential()?;
        let vault = self.vault().clone();
        let key = vault.key().await?;
        call.asks(
            &key.veil(&[new.name.as_bytes(), b"\0", content.kind().as_str().as_bytes(), &written(&content)?].concat()),
        );
        let (name, by) = (new.name, call.by.name.clone());
        self.change(call, "credentials", move |tx| {
            let there = credential::get_for_update(tx, &name)?;
            if let Some(there) = &there {
                same_kind(&there.record, content.kind())?;
            }
            let present = there.as_ref().is_some_and(|t| t.record.state == CredentialState::Present);
            let cause = Cause::operator(&by, if present { CHANGED } else { CREATED }, "");
            vault.put(tx, &key, there.as_ref(), &name, &content, &cause)?;
            view(tx, &name)
        })
        .await
    }

    /// Credentials in order of their names, with nothing of what they hold.
    pub async fn list_credentials(&self, request: &PageRequest) -> Result<Page<CredentialView>, Error> {
        let size = request.size()?;
        let filter = credential::FILTER.parse(&request.filter)?;
        let after = request.cursor("credentials")?;
        let items = self
            .store()
            .read(move |tx| {
                let uses = credential::uses(tx)?;
                let machines = |record: &CredentialRecord| uses.get(&record.name).copied().unwrap_or(0);
                let found = credential::list(tx, &filter, &after, size + 1)?;
                Ok(found.into_iter().map(|record| CredentialView { machines: machines(&record), record }).collect())
            })
            .await?;
        Ok(request.page("credentials", items, size, |c: &CredentialView| c.record.name.clone()))
    }

    /// Deletes a credential and wipes what it holds. Again: no change.
    pub async fn delete_credential(&self, call: &Arc<Call>, name: &str, force: bool) -> Result<CredentialView, Error> {
        let name = required("name", name)?;
        let cause = Cause::operator(&call.by.name, DELETED, if force { "forced" } else { "" });
        self.change(call, "credentials", move |tx| {
            let there = credential::get_for_update(tx, &name)?.ok_or_else(|| not_found(&name))?.record;
            if there.state == CredentialState::Present {
                let machines = credential::uses(tx)?.get(&name).copied().unwrap_or(0);
                if machines > 0 && !force {
                    return Err(in_use(&name, machines).into());
                }
                if let Some(site) = site::with_credential(tx, &name)?.filter(|_| !force) {
                    let message =
                        format!("site {site} is reached with credential {name}; give it another first, or say force");
                    return Err(Error::new(Reason::CredentialInUse, message).with("site", site).into());
                }
            }
            match credential::delete(tx, &there, &cause)? {
                store::Moved::Moved | store::Moved::AlreadyThere => view(tx, &name),
            }
        })
        .await
    }

    /// Seals everything under the current key. What was done stays done if it is cut short, and is not done twice.
    pub async fn rotate_secret_key(&self, call: &Arc<Call>) -> Result<KeyRotation, Error> {
        let vault = self.vault();
        let key = vault.key().await?;
        let (mut resealed, mut after) = (0, String::new());
        loop {
            let (vault, key, from) = (vault.clone(), key.clone(), after.clone());
            let (done, last) = self
                .store()
                .write(&Caller::new(call.by.token_id.as_str()), "credentials", move |tx| {
                    let mut done = 0;
                    let rows = credential::under_other_keys(tx, key.id(), &from, BATCH)?;
                    for there in &rows {
                        if let Some(sealed) = vault.resealed(&key, there) {
                            credential::reseal(tx, &there.record, sealed, key.id())?;
                            done += 1;
                        }
                    }
                    Ok((done, rows.last().map(|there| there.record.name.clone())))
                })
                .await?;
            resealed += done;
            match last {
                Some(last) => after = last,
                None => break,
            }
        }
        resealed += self.reseal_agent_authority(&key).await?;
        let id = key.id().to_owned();
        self.change(call, "credentials", move |tx| rotation(tx, &id, resealed)).await
    }
}

fn in_use(name: &str, machines: u64) -> Error {
    let many = if machines == 1 { "1 machine names".to_owned() } else { format!("{machines} machines name") };
    let message =
        format!("{many} credential {name}, and could not be reached without it; give them another first, or say force");
    Error::new(Reason::CredentialInUse, message).with("machines", machines.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fields_of_the_kind_may_be_set() {
        let new = |kind: &str| NewCredential { kind: kind.into(), username: "u".into(), ..NewCredential::default() };
        let field = |new: NewCredential| new.credential().err().and_then(|e| e.details.get("field").cloned());
        assert_eq!(field(new("telnet")).as_deref(), Some("kind"));
        assert_eq!(field(new("bmc")).as_deref(), Some("password"));
        assert_eq!(field(new("ca")).as_deref(), Some("username"));
        assert_eq!(
            field(NewCredential { private_key: Secret::new("x"), ..new("bmc") }).as_deref(),
            Some("private_key")
        );
        assert_eq!(field(NewCredential { password: Secret::new("x"), ..new("bmc") }), None);
        let certificates = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n".to_owned();
        let ca = NewCredential { kind: "ca".into(), certificates, ..NewCredential::default() };
        assert!(ca.credential().is_err_and(|e| e.message.contains("number 1")));
    }
}
