//! Credentials: what we need to be let in, kept under a name. Machines name theirs in `credentials_ref`,
//! clusters are found by theirs.

use crate::error::{Error, Reason};
use crate::id::check_name;
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::limits;
use crate::machine::check_text;
use crate::secret::Secret;
use crate::time::Timestamp;
use crate::words::words;

words!(
    /// What a credential opens.
    CredentialKind { Bmc = "bmc", Ssh = "ssh", Kubeconfig = "kubeconfig", Ca = "ca", UserData = "user-data", Maas = "maas" });

/// An opened credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    Bmc(BmcLogin),
    /// A BMC that is being given another password: until it is known which one it takes, both are kept.
    BmcChanging {
        login: BmcLogin,
        next: Secret,
    },
    Ssh(SshLogin),
    /// A whole kubeconfig. Its name is the name of the cluster.
    Kubeconfig(Secret),
    /// Certificates that sign those of BMCs, in PEM. Not secret, but as worth keeping from change.
    Ca(String),
    /// What cloud-init is given at the first boot of what was installed. It mostly holds keys and tokens.
    UserData(Secret),
    /// An API key of a MAAS: `CONSUMER:TOKEN:SECRET`.
    Maas(Secret),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BmcLogin {
    pub username: String,
    pub password: Secret,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshLogin {
    pub username: String,
    /// In OpenSSH's or PEM form.
    pub private_key: Secret,
    /// Of the private key; empty: it has none.
    pub passphrase: Secret,
}

impl Credential {
    pub const fn kind(&self) -> CredentialKind {
        match self {
            Credential::Bmc(_) | Credential::BmcChanging { .. } => CredentialKind::Bmc,
            Credential::Ssh(_) => CredentialKind::Ssh,
            Credential::Kubeconfig(_) => CredentialKind::Kubeconfig,
            Credential::Ca(_) => CredentialKind::Ca,
            Credential::UserData(_) => CredentialKind::UserData,
            Credential::Maas(_) => CredentialKind::Maas,
        }
    }
}

/// Whether a credential is there. What was deleted keeps its row, its history and nothing secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CredentialState {
    Present,
    Deleted,
}

pub const CREATED: &str = "created";
/// Somebody gave it another content.
pub const CHANGED: &str = "changed";
/// We changed it where it is used, and keep it as it is there now.
pub const ROTATED: &str = "rotated";
pub const DELETED: &str = "deleted";

const fn edge(
    from: Option<CredentialState>,
    to: CredentialState,
    trigger: &'static str,
    owner: Owner,
) -> Edge<CredentialState> {
    Edge { from, to, trigger, owner, guard: Guard::None }
}

static EDGES: &[Edge<CredentialState>] = &[
    edge(None, CredentialState::Present, CREATED, Owner::Operator),
    edge(Some(CredentialState::Present), CredentialState::Present, CHANGED, Owner::Operator),
    edge(Some(CredentialState::Present), CredentialState::Present, ROTATED, Owner::Executor),
    edge(Some(CredentialState::Present), CredentialState::Deleted, DELETED, Owner::Operator),
    edge(Some(CredentialState::Deleted), CredentialState::Present, CREATED, Owner::Operator),
];

impl State for CredentialState {
    const ENTITY: &'static str = "credential";
    const ALL: &'static [Self] = &[CredentialState::Present, CredentialState::Deleted];

    fn as_str(self) -> &'static str {
        match self {
            CredentialState::Present => "present",
            CredentialState::Deleted => "deleted",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            CredentialState::Present | CredentialState::Deleted => Deadline::AtRest,
        }
    }
}

/// A credential as it is listed: all but what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialRecord {
    pub name: String,
    pub kind: CredentialKind,
    pub state: CredentialState,
    /// Of the content: raised by every change of it.
    pub version: u64,
    /// The key that it is sealed under.
    pub key_id: String,
    pub created_at: Timestamp,
    pub created_by: String,
    pub updated_at: Timestamp,
    pub updated_by: String,
}

pub fn not_found(name: &str) -> Error {
    let message = format!("there is no credential {name:?}; 'millwright credential list' shows those there are");
    Error::new(Reason::CredentialNotFound, message).with("credential", name)
}

impl Credential {
    /// Whether it can be one, as far as its form tells. What is said about it holds nothing of it.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Credential::BmcChanging { login, next } => {
                sized("password", next.reveal(), limits::PASSWORD_MAX)?;
                Credential::Bmc(login.clone()).check()
            }
            Credential::Bmc(login) => {
                required("username", &login.username)?;
                check_text("username", &login.username, limits::TEXT_MAX)?;
                sized("password", login.password.reveal(), limits::PASSWORD_MAX)?;
                one_line("password", login.password.reveal())
            }
            Credential::Ssh(login) => {
                required("username", &login.username)?;
                check_text("username", &login.username, limits::TEXT_MAX)?;
                sized("private_key", login.private_key.reveal(), limits::PRIVATE_KEY_MAX)?;
                if !login.passphrase.is_empty() {
                    sized("passphrase", login.passphrase.reveal(), limits::PASSWORD_MAX)?;
                    one_line("passphrase", login.passphrase.reveal())?;
                }
                private_key_form("private_key", login.private_key.reveal())
            }
            Credential::Kubeconfig(text) => sized("kubeconfig", text.reveal(), limits::KUBECONFIG_MAX),
            Credential::UserData(text) => sized("user_data", text.reveal(), limits::USER_DATA_MAX),
            Credential::Maas(key) => {
                sized("api_key", key.reveal(), limits::PASSWORD_MAX)?;
                maas_key_form("api_key", key.reveal())
            }
            Credential::Ca(pem) => {
                sized("certificates", pem, limits::CERTIFICATES_MAX)?;
                if pem_blocks(pem, "CERTIFICATE") == 0 {
                    return Err(Error::field(
                        "certificates",
                        "holds no certificate in PEM (-----BEGIN CERTIFICATE-----)",
                    ));
                }
                if pem.contains("PRIVATE KEY-----") {
                    return Err(Error::field("certificates", "holds a private key, which has no place there"));
                }
                Ok(())
            }
        }
    }
}

fn required(field: &str, text: &str) -> Result<(), Error> {
    if text.is_empty() { Err(Error::field(field, "must not be empty")) } else { Ok(()) }
}

fn sized(field: &str, text: &str, most: usize) -> Result<(), Error> {
    required(field, text)?;
    if text.len() > most {
        return Err(Error::field(field, format!("has {} bytes, at most {most} are allowed", text.len())));
    }
    if text.contains('\0') {
        return Err(Error::field(field, "holds a NUL"));
    }
    Ok(())
}

/// Nobody types a line break: whoever sends one has sent the wrong file.
fn one_line(field: &str, text: &str) -> Result<(), Error> {
    if text.chars().any(char::is_control) {
        return Err(Error::field(field, "holds a line break or another control character"));
    }
    Ok(())
}

/// Three words with colons between them, as `maas apikey` prints them.
fn maas_key_form(field: &str, text: &str) -> Result<(), Error> {
    let of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let plain = |part: &str| !part.is_empty() && part.chars().all(of_key);
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() != 3 || !parts.iter().all(|part| plain(part)) {
        let form =
            "is not an API key of a MAAS, which is CONSUMER:TOKEN:SECRET of letters, digits, - and _, on one line";
        return Err(Error::field(field, form));
    }
    Ok(())
}

/// How many whole blocks of that label a PEM text has.
fn pem_blocks(text: &str, label: &str) -> usize {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    text.split(&begin).skip(1).filter(|rest| rest.contains(&end)).count()
}

fn private_key_form(field: &str, text: &str) -> Result<(), Error> {
    const LABELS: [&str; 5] =
        ["OPENSSH PRIVATE KEY", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"];
    if text.trim_start().starts_with("ssh-") || text.contains("PUBLIC KEY-----") {
        return Err(Error::field(field, "is a public key; the private one is wanted"));
    }
    match LABELS.iter().map(|label| pem_blocks(text, label)).sum::<usize>() {
        1 => Ok(()),
        0 => Err(Error::field(field, "is not a private key in OpenSSH's or PEM form, whole from BEGIN to END")),
        _ => Err(Error::field(field, "holds more than one private key")),
    }
}

/// The names in a machine's `credentials_ref`: one, or several with commas between them, one of each kind.
pub fn names(credentials_ref: &str) -> impl Iterator<Item = &str> {
    credentials_ref.split(',').map(str::trim).filter(|name| !name.is_empty())
}

pub fn check_ref(field: &str, credentials_ref: &str) -> Result<(), Error> {
    let all: Vec<&str> = names(credentials_ref).collect();
    if all.len() > limits::CREDENTIALS_MAX {
        let most = limits::CREDENTIALS_MAX;
        return Err(Error::field(field, format!("names {} credentials, at most {most} are allowed", all.len())));
    }
    all.into_iter().try_for_each(|name| check_name(field, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(key: &str) -> Credential {
        let (private_key, passphrase) = (Secret::new(key), Secret::default());
        Credential::Ssh(SshLogin { username: "root".into(), private_key, passphrase })
    }

    fn field(credential: &Credential) -> Option<String> {
        credential.check().err().and_then(|e| e.details.get("field").cloned())
    }

    #[test]
    fn what_cannot_be_a_credential_is_refused_by_field_and_never_quoted() {
        let bmc = |username: &str, password: &str| {
            Credential::Bmc(BmcLogin { username: username.into(), password: Secret::new(password) })
        };
        assert_eq!(bmc("admin", "hunter2").check(), Ok(()));
        assert_eq!(field(&bmc("", "hunter2")).as_deref(), Some("username"));
        assert_eq!(field(&bmc("admin", "")).as_deref(), Some("password"));
        assert_eq!(field(&bmc("admin", "a\nb")).as_deref(), Some("password"));
        let long = "hunter2".repeat(limits::PASSWORD_MAX);
        assert!(bmc("admin", &long).check().is_err_and(|e| !e.message.contains("hunter2")));
        let key = |label: &str| format!("-----BEGIN {label}-----\nQUJD\n-----END {label}-----\n");
        for label in ["OPENSSH PRIVATE KEY", "PRIVATE KEY", "RSA PRIVATE KEY"] {
            assert_eq!(ssh(&key(label)).check(), Ok(()), "{label}");
        }
        for bad in [
            "ssh-ed25519 AAAA me@here",
            "hunter2",
            &key("PUBLIC KEY"),
            "-----BEGIN PRIVATE KEY-----\nQUJD",
            &key("PRIVATE KEY").repeat(2),
        ] {
            let error = ssh(bad).check().expect_err(bad);
            assert!(!error.message.contains("hunter2") && !error.message.contains("AAAA"), "{error}");
        }
        let maas = |text: &str| Credential::Maas(Secret::new(text));
        assert_eq!(maas("aBc1:dEf2:gHi3").check(), Ok(()));
        for bad in ["", "hunter2", "hunter2:b", "a:b:hunter2\n", "a::hunter2", "a:b:c:hunter2", "a:b:hunter2 x"] {
            let error = maas(bad).check().expect_err(bad);
            assert!(!error.message.contains("hunter2"), "{error}");
            assert_eq!(error.details.get("field").map(String::as_str), Some("api_key"));
        }
        assert_eq!(Credential::Ca(key("CERTIFICATE")).check(), Ok(()));
        for bad in [String::new(), "x".into(), key("CERTIFICATE") + &key("PRIVATE KEY")] {
            assert_eq!(field(&Credential::Ca(bad)).as_deref(), Some("certificates"));
        }
    }

    #[test]
    fn a_reference_names_one_or_several() {
        assert_eq!(names(" rack-12, fleet-ssh,").collect::<Vec<_>>(), ["rack-12", "fleet-ssh"]);
        assert_eq!(names("").count(), 0);
        assert!(check_ref("spec.credentials_ref", "a,b").is_ok());
        assert!(check_ref("spec.credentials_ref", "a b").is_err_and(|e| e.message.contains("spec.credentials_ref")));
        assert!(check_ref("spec.credentials_ref", "a,b,c,d,e,f,g,h,i").is_err());
    }
}
