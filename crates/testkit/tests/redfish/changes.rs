//! Virtual media, BIOS, accounts, the lamp: does it, does it twice, is refused, is ignored.

use crate::fixture::{accepted, adapter, done, login, one, options, password, patient, refused};
use domain::credential::BmcLogin;
use domain::hardware::PowerAction;
use domain::{Reason, Secret};
use provider::Bmc as _;
use serde_json::json;
use std::collections::BTreeMap;
use testkit::canary;
use testkit::http_faults::Fault;
use testkit::redfish_responder::What;

const ISO: &str = "http://127.0.0.1:8080/install.iso";

#[tokio::test]
async fn a_medium_is_inserted_replaced_and_ejected() {
    for of_manager in [false, true] {
        let mut placed = options();
        placed.media_of_manager = of_manager;
        let (responder, bmc) = one(placed).await;
        assert_eq!(bmc.media().await.expect("read"), None);
        done(bmc.eject_media().await);
        done(bmc.insert_media(ISO).await);
        done(bmc.insert_media(ISO).await);
        assert_eq!(bmc.media().await.expect("read").as_deref(), Some(ISO));
        assert_eq!(responder.done_to(1), [What::MediaIn(ISO.into())], "once");
        done(bmc.insert_media("http://127.0.0.1:8080/other.iso").await);
        done(bmc.eject_media().await);
        done(bmc.eject_media().await);
        let expected = [
            What::MediaIn(ISO.into()),
            What::MediaOut,
            What::MediaIn("http://127.0.0.1:8080/other.iso".into()),
            What::MediaOut,
        ];
        assert_eq!(responder.done_to(1), expected);
    }
}

#[tokio::test]
async fn a_medium_that_is_accepted_and_not_inserted_is_found_out() {
    let (responder, bmc) = one(options()).await;
    responder.faults.arm("POST", "InsertMedia", Fault::DoNothing, 1);
    refused(bmc.insert_media(ISO).await, Reason::ProviderRefused, &["accepted", "none is inserted"]);
    done(bmc.insert_media(ISO).await);
    responder.faults.arm("POST", "EjectMedia", Fault::DoNothing, 1);
    refused(bmc.eject_media().await, Reason::ProviderRefused, &["accepted", "still inserted"]);
}

fn attributes(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn bios_attributes_wait_for_the_next_boot() {
    let (responder, bmc) = one(options()).await;
    let wanted = attributes(&[("NumLock", "Off"), ("Cores", "8"), ("QuietBoot", "false")]);
    done(bmc.set_bios(&attributes(&[("Cores", "16")])).await);
    accepted(bmc.set_bios(&wanted).await);
    accepted(bmc.set_bios(&wanted).await);
    let set = json!({"NumLock": "Off", "Cores": 8, "QuietBoot": false});
    let set = set.as_object().expect("an object").clone();
    assert_eq!(responder.done_to(1), [What::BiosSet(set.clone())], "once, each in its type");
    let bios = bmc.bios().await.expect("read");
    assert_eq!((bios.current["Cores"].as_str(), bios.pending["Cores"].as_str()), ("16", "8"));
    accepted(bmc.power(PowerAction::On).await);
    assert!(responder.done_to(1).contains(&What::BiosApplied(set)));
    let bios = bmc.bios().await.expect("read");
    assert_eq!((bios.current["Cores"].as_str(), bios.pending.len()), ("8", 0));
    done(bmc.set_bios(&wanted).await);
}

#[tokio::test]
async fn bios_attributes_that_make_no_sense_are_not_sent() {
    let (responder, bmc) = one(options()).await;
    refused(bmc.set_bios(&attributes(&[("Nonsense", "1")])).await, Reason::ProviderRefused, &["Nonsense"]);
    refused(bmc.set_bios(&attributes(&[("Cores", "many")])).await, Reason::ProviderRefused, &["Cores", "many"]);
    assert_eq!(responder.done_to(1), []);
    responder.faults.arm("PATCH", "Settings", Fault::DoNothing, 1);
    refused(bmc.set_bios(&attributes(&[("Cores", "8")])).await, Reason::ProviderRefused, &["Cores", "16", "ignores"]);
}

#[tokio::test]
async fn the_lamp_is_lit_and_put_out() {
    for old_schema in [false, true] {
        let mut form = options();
        form.old_schema = old_schema;
        let (responder, bmc) = one(form).await;
        for on in [true, true, false, false] {
            done(bmc.identify(on).await);
            assert_eq!(responder.system(1).lamp, on);
        }
        assert_eq!(responder.done_to(1), [What::Lamp(true), What::Lamp(false)]);
        responder.faults.arm("PATCH", "/Systems/1", Fault::DoNothing, 1);
        refused(bmc.identify(true).await, Reason::ProviderRefused, &["accepted", "ignores"]);
    }
}

#[tokio::test]
async fn a_password_is_changed_by_the_name_of_its_account() {
    let (responder, bmc) = one(options()).await;
    let new = canary::plant("rotated");
    done(bmc.set_password("operator", &Secret::new(new.clone())).await);
    done(bmc.set_password("operator", &Secret::new(new.clone())).await);
    assert_eq!(responder.password_of("operator").as_deref(), Some(new.as_str()));
    assert_eq!(responder.password_of("auditor").as_deref(), Some("looks only"));
    refused(bmc.set_password("nobody", &Secret::new(new.clone())).await, Reason::ProviderRefused, &["nobody"]);
    // whoever comes with the new one is let in, with the old one no more
    let login = BmcLogin { password: Secret::new(new), ..login() };
    adapter(&responder.endpoint(1), login, patient()).state().await.expect("let in");
    let old = BmcLogin { username: "operator".into(), password: Secret::new(password()) };
    refused(adapter(&responder.endpoint(1), old, patient()).state().await, Reason::LoginRefused, &["rack-12"]);
}

#[tokio::test]
async fn a_password_that_is_refused_is_not_quoted() {
    let (responder, bmc) = one(options()).await;
    let text =
        refused(bmc.set_password("operator", &Secret::new("cnry_7")).await, Reason::ProviderRefused, &["policy"]);
    assert!(text.contains("(a secret)"), "{text}");
    assert_eq!(responder.password_of("operator").as_deref(), Some(password()));
}
