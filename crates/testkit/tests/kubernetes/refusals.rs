//! What must not work, against the real server: each way of not getting in has a reason of its own, and no secret is
//! in what is said about it.

use crate::fixture::{Machine, NAME, cluster, impatient, server, with_token};
use domain::stage::FailureClass;
use kube::{Cluster, Evict};
use provider::ProviderError;
use std::time::Duration;
use testkit::kubernetes::kubeconfig;

fn class(e: &ProviderError) -> FailureClass {
    match e {
        ProviderError::Refused { class, .. } => *class,
        ProviderError::Unknown { .. } => panic!("nothing was done: {e}"),
    }
}

async fn refused(cluster: &Cluster) -> ProviderError {
    cluster.membership(&Machine::new().who()).await.expect_err("refused")
}

#[tokio::test]
async fn a_wrong_token_is_a_refused_login() {
    let token = testkit::canary::plant("wrong");
    let e = refused(&with_token(&token)).await;
    assert_eq!((e.reason().as_str(), class(&e)), ("LOGIN_REFUSED", FailureClass::NeedsOperator));
    assert!(e.to_string().contains("\"prod\"") && e.to_string().contains("credential set"), "{e}");
    assert!(!e.to_string().contains(&token), "{e}");
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted_unless_told_to() {
    let stranger = testkit::tls::Authority::default().pem();
    let other = kubeconfig(&server().url(), &stranger, &server().millwright_token);
    let e = refused(&crate::fixture::cluster_of(NAME, &other).expect("a kubeconfig")).await;
    assert_eq!((e.reason().as_str(), class(&e)), ("UNTRUSTED_CERTIFICATE", FailureClass::NeedsOperator));
    assert!(e.to_string().contains("credential set prod"), "{e}");

    let told = other.reveal().replace("\"server\"", "\"insecure-skip-tls-verify\": true, \"server\"");
    let told = crate::fixture::cluster_of(NAME, &domain::Secret::new(told)).expect("a kubeconfig");
    assert!(told.membership(&Machine::new().who()).await.is_ok());
}

#[tokio::test]
async fn a_name_that_the_certificate_has_not_is_not_trusted_unless_given() {
    let url = server().url().replace("127.0.0.1", "127.0.0.2");
    // that address leads to the same host, and nobody listens there
    let by_name = server().kubeconfig(&server().millwright_token);
    let wrong = by_name.reveal().replace("\"server\"", "\"tls-server-name\": \"other.test\", \"server\"");
    let e = refused(&crate::fixture::cluster_of(NAME, &domain::Secret::new(wrong)).expect("a kubeconfig")).await;
    assert_eq!(e.reason().as_str(), "UNTRUSTED_CERTIFICATE");
    let e = refused(&impatient(&kubeconfig(&url, &server().authority_pem(), "x"))).await;
    assert_eq!(e.reason().as_str(), "CONNECTION_REFUSED");
}

#[tokio::test]
async fn a_closed_port_a_black_hole_and_something_else_are_told_apart() {
    let pem = server().authority_pem();
    let closed = testkit::closed_port::ClosedPort::new();
    let e = refused(&impatient(&kubeconfig(&format!("https://{}", closed.at), &pem, "x"))).await;
    assert_eq!((e.reason().as_str(), class(&e)), ("CONNECTION_REFUSED", FailureClass::Transient));

    // connections are taken by the system, and nobody ever reads
    let hole = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = hole.local_addr().expect("an address");
    let e = refused(&impatient(&kubeconfig(&format!("https://{at}"), &pem, "x"))).await;
    assert_eq!((e.reason().as_str(), class(&e)), ("UNREACHABLE", FailureClass::Transient));
    // also for a change: it was never sent
    let e = impatient(&kubeconfig(&format!("https://{at}"), &pem, "x")).mint_join(Duration::from_secs(60)).await;
    assert_eq!(e.expect_err("no way").reason().as_str(), "UNREACHABLE");

    let nowhere = kubeconfig("https://no-such-host.invalid:6443", &pem, "x");
    assert_eq!(refused(&impatient(&nowhere)).await.reason().as_str(), "UNREACHABLE");

    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = other.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = other.accept().await {
            let greeting = b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n";
            drop(tokio::io::AsyncWriteExt::write_all(&mut socket, greeting).await);
            // until the other side has had enough
            drop(tokio::io::copy(&mut socket, &mut tokio::io::sink()).await);
        }
    });
    let e = refused(&impatient(&kubeconfig(&format!("https://{at}"), &pem, "x"))).await;
    assert_eq!((e.reason().as_str(), class(&e)), ("BAD_ANSWER", FailureClass::Transient));
}

#[tokio::test]
async fn what_is_not_allowed_is_named_with_verb_and_resource() {
    let limited = with_token(&server().limited_token);
    let e = refused(&limited).await;
    assert_eq!((e.reason().as_str(), class(&e)), ("PROVIDER_REFUSED", FailureClass::NeedsOperator));
    assert!(e.to_string().contains("does not let us list nodes") && e.to_string().contains("limited"), "{e}");
    let e = limited.mint_join(Duration::from_secs(60)).await.expect_err("forbidden");
    assert!(e.to_string().contains("create secrets in kube-system"), "{e}");
    let e = limited.forget_join("abcdef").await.expect_err("forbidden");
    assert!(e.to_string().contains("delete secrets in kube-system"), "{e}");
    let e = limited.evict_pass(&Machine::new().who(), &Evict::default()).await.expect_err("forbidden");
    assert!(e.to_string().contains("list nodes"), "{e}");
}

#[tokio::test]
async fn a_client_certificate_lets_in_as_a_token_does() {
    let by_certificate = crate::fixture::cluster_of(NAME, &server().kubeconfig_by_certificate()).expect("a kubeconfig");
    assert_eq!(by_certificate.check().await.expect("an answer").missing, [""; 0]);
    assert!(!format!("{by_certificate:?}").contains("PRIVATE"));
    assert_eq!(format!("{:?}", cluster()), format!("Cluster {{ name: \"prod\", server: {:?} }}", server().url()));
}
