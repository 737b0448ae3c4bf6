//! Keys of every kind let us in; wrong ones are told apart from a host that is not there.

use crate::fixture::*;
use domain::credential::SshLogin;
use domain::{Reason, Secret};
use provider::ProviderError;
use ssh::{Host, host_key_of};
use testkit::sshd::SshHost;

async fn boot_id(login: SshLogin) -> Result<String, ProviderError> {
    let machine = shared();
    Host::new(machine.at(), login, "rack-12", machine.fingerprint(), None, patient()).boot_id().await
}

#[tokio::test]
async fn keys_of_every_kind_let_us_in() {
    for kind in ["ed25519", "ecdsa", "rsa"] {
        for passphrase in ["", "with a passphrase: $'\""] {
            let login = shared().login_with(kind, passphrase);
            assert_eq!(boot_id(login).await, Ok(shared().boot_id()), "{kind} {passphrase}");
        }
    }
}

#[tokio::test]
async fn keys_in_pem_let_us_in() {
    for form in ["PEM", "PKCS8"] {
        let login = shared().login_with("rsa", "");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pem.key");
        std::fs::write(&file, login.private_key.reveal()).expect("written");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("private");
        let mut convert = std::process::Command::new("ssh-keygen");
        convert.args(["-q", "-p", "-N", "", "-P", "", "-m", form, "-f"]).arg(&file);
        let converted = convert.output().expect("ssh-keygen runs");
        assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
        let pem = std::fs::read_to_string(&file).expect("read");
        assert!(!pem.contains("OPENSSH"), "it is in another form");
        let login = SshLogin { private_key: Secret::new(pem), ..login };
        assert_eq!(boot_id(login).await, Ok(shared().boot_id()), "{form}");
    }
}

#[tokio::test]
async fn hosts_with_keys_of_other_kinds_are_known_by_them() {
    for kind in ["ecdsa", "rsa"] {
        let machine = SshHost::with_host_key(kind);
        assert_eq!(host_key_of(&machine.at(), None, PATIENCE).await, Ok(machine.fingerprint()), "{kind}");
        assert_eq!(reach(&machine).boot_id().await, Ok(machine.boot_id()), "{kind}");
    }
}

#[tokio::test]
async fn a_key_that_the_host_does_not_know_is_a_refused_login() {
    let another = SshHost::start();
    let refused = boot_id(another.login()).await.expect_err("a key of another host");
    assert_eq!(refused.reason(), Reason::LoginRefused);
    assert!(refused.to_string().contains("rack-12"), "the credential is named: {refused}");
}

#[tokio::test]
async fn a_user_that_the_host_does_not_know_is_a_refused_login() {
    let refused = boot_id(shared().login_as("nobody-of-that-name")).await.expect_err("no such user");
    assert_eq!(refused.reason(), Reason::LoginRefused);
}

#[tokio::test]
async fn a_key_that_cannot_be_read_is_the_credentials_fault() {
    let good = shared().login_with("ed25519", "right");
    let key = good.private_key.reveal();
    let bad = [
        (key, "wrong"),
        (key, ""),
        (&key[..key.len() / 2], "right"),
        ("", ""),
        ("not a key at all", "right"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n////\n-----END OPENSSH PRIVATE KEY-----\n", ""),
    ];
    for (text, passphrase) in bad {
        let login = SshLogin { private_key: Secret::new(text), passphrase: Secret::new(passphrase), ..good.clone() };
        let refused = boot_id(login).await.expect_err("no key");
        assert_eq!(refused.reason(), Reason::CredentialMissing, "{refused}");
    }
}
