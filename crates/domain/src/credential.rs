//! Credentials: what we need to be let in, kept under a name. Machines name theirs in `credentials_ref`,
//! clusters are found by theirs.

use crate::error::Error;
use crate::id::check_name;
use crate::limits;
use crate::secret::Secret;
use crate::words::words;

words!(
    /// What a credential opens.
    CredentialKind { Bmc = "bmc", Ssh = "ssh", Kubeconfig = "kubeconfig", Ca = "ca" });

/// An opened credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    Bmc(BmcLogin),
    Ssh(SshLogin),
    /// A whole kubeconfig. Its name is the name of the cluster.
    Kubeconfig(Secret),
    /// Certificates that sign those of BMCs, in PEM. Not secret, but as worth keeping from change.
    Ca(String),
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
            Credential::Bmc(_) => CredentialKind::Bmc,
            Credential::Ssh(_) => CredentialKind::Ssh,
            Credential::Kubeconfig(_) => CredentialKind::Kubeconfig,
            Credential::Ca(_) => CredentialKind::Ca,
        }
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

    #[test]
    fn a_reference_names_one_or_several() {
        assert_eq!(names(" rack-12, fleet-ssh,").collect::<Vec<_>>(), ["rack-12", "fleet-ssh"]);
        assert_eq!(names("").count(), 0);
        assert!(check_ref("spec.credentials_ref", "a,b").is_ok());
        assert!(check_ref("spec.credentials_ref", "a b").is_err_and(|e| e.message.contains("spec.credentials_ref")));
        assert!(check_ref("spec.credentials_ref", "a,b,c,d,e,f,g,h,i").is_err());
    }
}
