//! What is asked for: every wish that cannot be meant is refused with the field at fault, a preview changes nothing, and a
//! repeated wish is one wish. Hostile words are refused, or are one word and nothing else wherever they come to stand.

use crate::plant::{Plant, SITE, mac};
use crate::play::{Before, Play};
use domain::Reason;
use domain::job::JobStatus;
use domain::site::Site;
use service::{Call, NewOnboarding};
use std::sync::Arc;
use store::node;
use testkit::fleet::{Database, admin};
use testkit::maas_sim::{Calls, Misbehaviour};

async fn nodes(plant: &Plant) -> usize {
    let read = plant.fleet.store.snapshot(|tx| node::list(tx, &node::FILTER.parse("")?, None, "", 100));
    read.await.expect("reads").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_meant_is_refused_with_the_field_at_fault() {
    let plant = Plant::new(Database::Memory).await;
    type Change = fn(&mut NewOnboarding);
    let wrong: Vec<(&str, Change)> = vec![
        ("site", |new| new.wish.site.clear()),
        ("profile", |new| new.wish.profile = "no-such".to_owned()),
        ("mac_addresses", |new| new.wish.macs.clear()),
        ("mac_addresses", |new| new.wish.macs = vec!["no mac".to_owned()]),
        ("mac_addresses", |new| new.wish.macs = vec!["ff:ff:ff:ff:ff:ff".to_owned()]),
        ("mac_addresses", |new| new.wish.macs = vec!["01:00:5e:00:00:01".to_owned()]),
        ("mac_addresses", |new| new.wish.macs = (0..400).map(mac).collect()),
        ("serial_number", |new| new.wish.serial_number = "To be filled by O.E.M.".to_owned()),
        ("serial_number", |new| new.wish.serial_number = "SN\n1".to_owned()),
        ("system_uuid", |new| new.wish.system_uuid = "00000000-0000-0000-0000-000000000000".to_owned()),
        ("system_uuid", |new| new.wish.system_uuid = "not one".to_owned()),
        ("system_id", |new| new.wish.system_id = "../users".to_owned()),
        ("system_id", |new| new.wish.system_id = "4y3h7n/?op=delete".to_owned()),
        ("hostname", |new| new.wish.hostname = "a b".to_owned()),
        ("hostname", |new| new.wish.hostname = "-a".to_owned()),
        ("hostname", |new| new.wish.hostname = "$(reboot)".to_owned()),
        ("name", |new| new.name = "a\nb".to_owned()),
        ("reason", |new| new.reason = "\u{1b}[31m".to_owned()),
        ("power.kind", |new| power(new).kind = "steam".to_owned()),
        ("power.address", |new| power(new).address.clear()),
        ("power.address", |new| power(new).address = "10.0.0.1\r\nX: y".to_owned()),
        ("power.credentials_ref", |new| power(new).credentials_ref = "no-such".to_owned()),
        ("power.parameters", |new| {
            power(new).parameters.insert("power_pass".to_owned(), "secret".to_owned());
        }),
        ("power.parameters", |new| {
            power(new).parameters.insert("A B".to_owned(), "x".to_owned());
        }),
        ("power.parameters", |new| {
            power(new).parameters.insert("k_g".to_owned(), "00112233".to_owned());
        }),
        ("power.parameters", |new| {
            let login = "https://user:password@10.0.0.1/on".to_owned();
            power(new).parameters.insert("power_on_uri".to_owned(), login);
        }),
    ];
    for (field, change) in &wrong {
        for dry_run in [true, false] {
            let mut new = NewOnboarding { wish: Plant::wish(1), dry_run, ..NewOnboarding::default() };
            change(&mut new);
            let refused = plant.service.onboard_node(&admin(), new).await.err();
            let refused = refused.unwrap_or_else(|| panic!("{field}: was taken"));
            assert_eq!(refused.reason, Reason::InvalidField, "{field}: {refused:?}");
            assert_eq!(refused.details.get("field").map(String::as_str), Some(*field), "{refused:?}");
            assert!(!refused.message.chars().any(char::is_control), "{field}: told raw: {:?}", refused.message);
        }
    }
    let mut nowhere = Plant::wish(1);
    nowhere.site = "nowhere".to_owned();
    let refused =
        plant.service.onboard_node(&admin(), NewOnboarding { wish: nowhere, ..NewOnboarding::default() }).await;
    assert_eq!(refused.err().map(|e| e.reason), Some(Reason::SiteNotFound));
    assert_eq!(nodes(&plant).await, 0, "nothing came of any of them");
    assert!(plant.sim.calls().is_empty(), "nobody was asked");
    println!("maas: {} wishes refused", wrong.len());
}

fn power(new: &mut NewOnboarding) -> &mut service::PowerWish {
    new.wish.power.get_or_insert_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preview_changes_nothing_and_says_what_would_be() {
    let plant = Plant::new(Database::Memory).await;
    let new = NewOnboarding { wish: Plant::wish(1), dry_run: true, ..NewOnboarding::default() };
    let seen = plant.service.onboard_node(&admin(), new).await.expect("a preview");
    assert!(!seen.done && seen.node.is_none() && seen.job.is_none());
    assert!(seen.effect.contains("18 stages, load_site_config to check_health"), "{}", seen.effect);
    assert_eq!(nodes(&plant).await, 0);
    assert!(plant.sim.calls().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_wish_with_the_same_key_is_one_node() {
    let plant = Plant::new(Database::Memory).await;
    let call = |key: &str, body: &str| {
        let call = Call::new(admin().by.clone(), "NodeService/OnboardNode", "r".to_owned(), Some(key.to_owned()));
        call.asks(body.as_bytes());
        Arc::new(call)
    };
    let new = || NewOnboarding { wish: Plant::wish(1), ..NewOnboarding::default() };
    let first = plant.service.onboard_node(&call("k1", "one"), new()).await.expect("begins");
    let again = plant.service.onboard_node(&call("k1", "one"), new()).await.expect("the same");
    let id = |answer: &service::Onboarded| answer.node.as_ref().map(|view| view.node.id.clone());
    assert_eq!(id(&first), id(&again));
    assert_eq!(first.job.map(|j| j.job.id), again.job.map(|j| j.job.id));
    let other = plant.service.onboard_node(&call("k1", "another"), new()).await.err().expect("another wish");
    assert_eq!(other.reason, Reason::IdempotencyKeyReused, "{other:?}");
    let beside = plant.service.onboard_node(&call("k2", "one"), new()).await.err().expect("it is claimed");
    assert!(matches!(beside.reason, Reason::NodeExists | Reason::IdentityTaken), "{beside:?}");
    assert_eq!(nodes(&plant).await, 1);
}

/// The claim on a machine ends with the node that had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_free_again_when_its_node_is_gone() {
    let mut play = Play::of(crate::play::FULL, "onboarded again", Before::New).await;
    let engine = play.plant.life(None).await;
    play.completes().await;
    let mut wish = Plant::wish(1);
    wish.hostname = "again".to_owned();
    let (node, job) = play.plant.onboard(wish).await;
    (play.node, play.job, play.kind) = (node, job, crate::play::ONBOARDING);
    play.completes().await;
    play.audited().await;
    play.over(Some(engine)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_words_in_a_site_are_refused() {
    let plant = Plant::new(Database::Memory).await;
    type Change = fn(&mut Site);
    let wrong: Vec<(&str, Change)> = vec![
        ("tags", |site| site.profiles[0].tags = vec!["a/?op=delete".to_owned()]),
        ("tags", |site| site.profiles[0].tags = vec!["a b".to_owned()]),
        ("series", |site| site.profiles[0].series = "noble&enable_hw_sync=0".to_owned()),
        ("kernel", |site| site.profiles[0].kernel = "ga;reboot".to_owned()),
        ("pool", |site| site.profiles[0].pool = "x\ny".to_owned()),
        ("root_size", |site| site.profiles[0].root_size = "all of it".to_owned()),
        ("pxe_subnet", |site| site.profiles[0].pxe_subnet = "name:a\nb".to_owned()),
        ("cloud_init", |site| site.profiles[0].cloud_init = "#!/bin/sh\n{{ bundle_base64 }}".to_owned()),
        ("cloud_init", |site| site.profiles[0].cloud_init = "#cloud-config\n{{ bundle_base64 }}{{ ".to_owned()),
        ("cloud_init", |site| {
            site.profiles[0].cloud_init = "#cloud-config\n{{ password }}{{ bundle_base64 }}".to_owned()
        }),
        ("cloud_init", |site| site.profiles[0].cloud_init = "#cloud-config\nhostname: {{ hostname }}\n".to_owned()),
        ("agent_url", |site| site.profiles[0].agent_url = "https://x/$(reboot)\n".to_owned()),
        ("url", |site| site.url = "http://user:secret@localhost/MAAS".to_owned()),
    ];
    let there = plant.service.get_site(SITE).await.expect("a site").site;
    for (field, change) in &wrong {
        let mut site = there.clone();
        change(&mut site);
        let refused = plant.service.update_site(&admin(), site).await.err();
        let refused = refused.unwrap_or_else(|| panic!("{field}: was taken"));
        assert_eq!(refused.reason, Reason::InvalidField, "{field}: {refused:?}");
        assert!(refused.details.get("field").is_some_and(|at| at.contains(field)), "{field}: {refused:?}");
        assert!(!refused.message.chars().any(char::is_control), "{field}: told raw: {:?}", refused.message);
    }
    println!("maas: {} descriptions of a site refused", wrong.len());
}

/// What MAAS says when it refuses is shown, and only shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_answers_are_shown_clean_and_overcome() {
    const SAID: &str = "\u{1b}]0;owned\u{7}\r\n<script>alert(1)</script>\u{202e}\u{0}";
    let ways = [
        Misbehaviour::Conflict(SAID.to_owned()),
        Misbehaviour::Refuse(500, SAID.to_owned()),
        Misbehaviour::Refuse(400, format!("{{\"distro_series\": [{SAID:?}]}}")),
        Misbehaviour::Say("null".to_owned()),
        Misbehaviour::Say("[]".to_owned()),
        Misbehaviour::Say(format!("{{\"system_id\": {SAID:?}}}")),
        Misbehaviour::Garbage,
    ];
    let plays = ways.into_iter().enumerate().map(|(n, way)| async move {
        let play = Play::onboarding(&format!("hostile answer {n}"), Before::of(n)).await;
        play.plant.sim.misbehave(Calls::op("deploy"), way.clone(), 5);
        play.plant.sim.misbehave(Calls::op("link_subnet"), way, 1);
        let engine = play.plant.life(None).await;
        let mut told = Vec::new();
        for _ in 0..12 {
            let (node, job) = play.rests().await;
            told.extend(job.failure.map(|f| f.message));
            if job.status.is_terminal() {
                break;
            }
            let next =
                domain::job_action::recommend(&play.plant.job(&play.job).await, node.status).0.expect("a way on");
            // as it was asked for it cannot work, says MAAS: a person knows better, and asks again
            let next = if next == domain::job_action::JobAction::Cancel {
                domain::job_action::JobAction::Resume
            } else {
                next
            };
            play.act(next).await.expect("is taken");
        }
        for message in told {
            assert!(!message.chars().any(|c| c.is_control() || c == '\u{202e}'), "{}: {message:?}", play.name);
        }
        assert_eq!(play.plant.job(&play.job).await.status, JobStatus::Completed, "{}", play.name);
        play.audited().await;
        play.over(Some(engine)).await;
    });
    crate::play::side_by_side("hostile answers", plays.collect()).await;
}
