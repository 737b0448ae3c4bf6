//! Runs that install by network boot: the lifecycle, driven by a run, on a machine that really boots from what is
//! served. Judged by the machine's own BMC, by what the guest was given and answered, and by the log.

use crate::guest::Manner;
use crate::plant::{MACHINE, MEDIA_IMAGE, Plant, provider};
use crate::site::MAC;
use domain::{MachineId, Secret};
use provider::{ImageControl as _, Operation, Target};
use serde_json::json;
use service::NewCredential;
use std::time::Duration;
use testkit::fleet::{Database, admin, eventually};
use testkit::http_faults::Fault;
use testkit::redfish_responder::What;

macro_rules! on_both_plants {
    ($name:ident, |$plant:ident| $body:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn run($plant: Plant) {
                $body
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                run(Plant::new(Database::Sqlite).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                run(Plant::new(Database::Postgres).await).await;
            }
        }
    };
}

fn moved(from: &str, to: &str, by: &str, whom: &str) -> (String, String, String, String) {
    (from.into(), to.into(), by.into(), whom.into())
}

/// The way of a repave up to its installer, in the name of whoever started it.
fn ordered() -> Vec<(String, String, String, String)> {
    vec![
        moved("active", "reprovision", "system", "tester"),
        moved("reprovision", "pending", "system", "tester"),
        moved("pending", "installing", "node_report", "-"),
    ]
}

on_both_plants!(a_repave_drives_the_whole_lifecycle, |plant| {
    let before = plant.guest.resets();
    let run = plant.halfway("r-1").await;
    plant.why_says(&format!("runs/{run}"), "installing, 43 % (attempt 1 of 3)").await;
    plant.why_says(&format!("machines/{MACHINE}"), "installing, 43 %").await;
    assert_eq!(plant.state().await, "installing");
    plant.guest.release();
    plant.ended(&run, "SUCCEEDED").await;
    let mut moves = ordered();
    moves.push(moved("installing", "installed", "node_report", "-"));
    moves.push(moved("installed", "active", "system", "tester"));
    assert_eq!(plant.moves().await, moves);
    // told to boot from the network once, and once from its disk by the last step
    assert_eq!(plant.guest.told_to_boot_from(), ["Pxe", "Hdd"]);
    assert_eq!((plant.guest.resets() - before, plant.guest.written()), (2, 1));
    plant.boots_its_disk_next();
    let log = plant.log(&run, "repave").await;
    for words in [
        "is installed by network boot",
        "workflow debian",
        "installer: writing to /dev/vda",
        "installer: written and read back",
        "first boot from disk is proven",
    ] {
        assert!(log.contains(words), "{words:?} is not in {log:?}");
    }
    // what comes late, or twice, changes nothing
    let complete: Vec<bool> = plant.guest.said().iter().filter(|s| s.status == "complete").map(|s| s.applied).collect();
    assert_eq!(complete, [true, false]);
    let token = plant.guest.tokens().pop().expect("a token");
    for status in ["started", "progress", "failed", "complete"] {
        let late = plant.guest.says(&token, status, json!({ "installation_error": "late" })).await;
        assert_eq!((late.applied, late.state.as_str(), late.reason.as_str()), (false, "active", "ORDER_CLOSED"));
    }
    assert_eq!(plant.moves().await, moves);
});

on_both_plants!(three_failures_are_one_failure_of_the_step, |plant| {
    plant.guest.will(&[Manner::Fails("first"), Manner::Dies, Manner::Fails("no space left on /dev/vda")]);
    let run = plant.repave("r-1").await;
    let run_row = plant.ended(&run, "FAILED").await;
    assert_eq!(run_row["error"]["code"], "INSTALL_FAILED", "{run_row:#}");
    let message = run_row["error"]["message"].as_str().expect("a sentence");
    assert!(message.contains("no space left on /dev/vda") && message.contains("3 attempts"), "{message}");
    let step = run_row["steps"].as_array().expect("steps").iter().find(|s| s["name"] == "repave").expect("the step");
    assert_eq!(step["retry_count"], 0, "the three are within one attempt of the step: {step}");
    assert_eq!((plant.guest.tokens().len(), plant.guest.written()), (3, 0));
    let mut moves = ordered();
    moves.push(moved("installing", "install_failed", "node_report", "-"));
    assert_eq!(plant.moves().await, moves);
    let node = plant.site.node(&plant.node).await;
    assert_eq!(
        (&node["install_attempts"], &node["last_install_error"]),
        (&json!(3), &json!("no space left on /dev/vda"))
    );
    plant.boots_its_disk_next();
    // a person is asked for, and told by the machine, too
    let why = plant.why(&format!("machines/{MACHINE}")).await;
    assert!(why.contains("NeedsIntervention") && why.contains("install_failed since"), "{why}");
    // a run that somebody starts is that person's word
    plant.works_again("r-2").await;
    let last = plant.moves().await;
    assert_eq!(last[moves.len()], moved("install_failed", "pending", "system", "tester"));
});

on_both_plants!(a_canceled_install_boots_its_disk_and_can_be_repeated, |plant| {
    let run = plant.halfway("r-1").await;
    let boots = plant.guest.disk_boots();
    plant.site.http.post(&format!("/api/v1/runs/{run}/cancel"), &json!({})).await.ok();
    plant.ended(&run, "CANCELED").await;
    assert_eq!(plant.state().await, "install_failed");
    let newest = plant.site.history(&plant.node).await[0].clone();
    assert_eq!(
        (&newest["metadata"]["canceled"], &newest["triggered_by"]),
        (&json!(true), &json!("system")),
        "{newest}"
    );
    // the installer is told to stop, and what it boots then is its disk
    eventually("it boots its disk", || async { (plant.guest.disk_boots() > boots).then_some(()) }).await;
    let stopped = plant.guest.said().pop().expect("a report");
    assert_eq!((stopped.applied, stopped.reason.as_str()), (false, "ORDER_CLOSED"));
    assert!(plant.guest.ask_again().await.is_none(), "nothing is served to it any more");
    plant.boots_its_disk_next();
    plant.works_again("r-2").await;
});

on_both_plants!(a_server_that_goes_and_comes_back_goes_on_with_it, |plant| {
    let mut plant = plant;
    let run = plant.halfway("r-1").await;
    for killed in [false, true] {
        plant = plant.served_again(killed).await;
        let said = plant.guest.said().len();
        eventually("it is heard again", || async { (plant.guest.said().len() > said).then_some(()) }).await;
        assert_eq!(plant.state().await, "installing", "killed: {killed}");
    }
    plant.guest.release();
    plant.ended(&run, "SUCCEEDED").await;
    assert_eq!(plant.state().await, "active");
    assert_eq!(plant.guest.told_to_boot_from(), ["Pxe", "Hdd"], "nobody has reset it once more");
    assert_eq!((plant.guest.tokens().len(), plant.guest.written()), (1, 1));
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_whose_time_is_up_closes_its_order() {
    let plant = Plant::new(Database::Sqlite).await;
    plant.guest.will(&[Manner::Stalls(20)]);
    let step = json!({ "name": "repave", "timeout_seconds": 600, "max_retries": 0, "repave": { "image": "debian" } });
    let run = plant.carries_out(&[step]).await;
    plant.guest_says("progress", 2).await;
    plant.site.server.fleet.pass(Duration::from_secs(700));
    let ended = plant.ended(&run, "FAILED").await;
    assert_eq!(ended["error"]["code"], "STEP_TIMED_OUT", "{ended:#}");
    assert_eq!(plant.state().await, "install_failed");
    let newest = plant.site.history(&plant.node).await[0].clone();
    assert_eq!(newest["metadata"]["canceled"], true, "{newest}");
    plant.boots_its_disk_next();
    plant.works_again("r-2").await;
}

/// Nobody runs the run's code any more: its order is closed with it all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_order_outlives_a_run_that_is_terminated() {
    let plant = Plant::new(Database::Sqlite).await;
    let run = plant.halfway("r-1").await;
    let body = json!({ "reason": "stuck" });
    let path = format!("/api/v1/admin/executions/{run}/terminate");
    plant.site.http.post(&path, &body).await.ok();
    plant.ended(&run, "CANCELED").await;
    assert_eq!(plant.state().await, "install_failed");
    assert_eq!(plant.site.node(&plant.node).await["order"]["closed_because"], "canceled");
    eventually("it boots its disk", || async { (plant.guest.disk_boots() > 0).then_some(()) }).await;
    plant.works_again("r-2").await;
}

/// By UEFI HTTP, which a step before has set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_dies_in_the_middle_is_installed_by_its_next_boot() {
    let plant = Plant::new(Database::Sqlite).await;
    plant.guest.will(&[Manner::Dies, Manner::Dies]);
    let netboot = json!({ "name": "netboot", "netboot": { "mode": "HTTP" } });
    let run = plant.carries_out(&[netboot, json!({ "name": "repave", "repave": { "image": "debian" } })]).await;
    plant.ended(&run, "SUCCEEDED").await;
    assert_eq!(plant.guest.told_to_boot_from(), ["UefiHttp"]);
    assert_eq!((plant.guest.tokens().len(), plant.guest.written(), plant.state().await.as_str()), (3, 1, "active"));
    plant.boots_its_disk_next();
}

/// The server is killed, or an answer lost, at each thing that it does to the machine. A reset that may have been done
/// is looked at, and one that was not is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_short_while_it_is_ordered_is_taken_up_where_it_was() {
    let (boot, reset) = (("PATCH", "/Systems/1"), ("POST", "ComputerSystem.Reset"));
    let points = [
        (boot, Fault::Hold, true),
        (boot, Fault::LoseAnswer, true),
        (boot, Fault::LoseAnswer, false),
        (reset, Fault::Hold, true),
        (reset, Fault::LoseAnswer, true),
        (reset, Fault::LoseAnswer, false),
    ];
    let played = points.map(|((method, path), fault, killed)| async move {
        let name = format!("{method} {fault:?}, killed: {killed}");
        let plant = Plant::new(Database::Sqlite).await;
        plant.guest.responder.faults.arm(method, path, fault, 1);
        let run = plant.carries_out(&[json!({ "name": "repave", "repave": { "image": "debian" } })]).await;
        eventually("it is hit", || async { (plant.guest.responder.faults.hits() > 0).then_some(()) }).await;
        let plant = if killed { plant.served_again(true).await } else { plant };
        plant.guest.responder.faults.disarm();
        plant.ended(&run, "SUCCEEDED").await;
        assert_eq!(plant.guest.told_to_boot_from(), ["Pxe"], "{name}");
        assert_eq!((plant.guest.written(), plant.state().await.as_str()), (1, "active"), "{name}");
        plant.boots_its_disk_next();
    });
    futures::future::join_all(played).await;
}

/// With a login it is the system itself that proves it, under another key than before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_is_a_login_the_new_system_itself_is_the_proof() {
    let plant = Plant::with_system(Database::Sqlite).await;
    let host = plant.guest.host.as_ref().expect("a host");
    let key = host.fingerprint();
    let run = plant.repave("r-1").await;
    plant.ended(&run, "SUCCEEDED").await;
    assert_ne!(host.fingerprint(), key);
    assert_eq!((plant.guest.written(), plant.state().await.as_str()), (1, "active"));
    let log = plant.log(&run, "repave").await;
    assert!(log.contains("its system lets us in"), "{log}");
    plant.boots_its_disk_next();
}

/// A run brings no machine to where only a person may bring it, and touches nothing when it cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_that_are_not_a_runs_to_leave_are_refused_by_name() {
    let plant = Plant::new(Database::Sqlite).await;
    let node = plant.node.clone();
    let fails = async |request: &str, words: &[&str]| {
        let run = plant.repave(request).await;
        let error = plant.ended(&run, "FAILED").await["error"].clone();
        let message = error["message"].as_str().expect("a sentence").to_owned();
        for word in words {
            assert!(message.contains(word), "{word:?} is not in {message:?}");
        }
    };
    plant.site.moved(&node, "migrating").await;
    fails("r-1", &["is migrating", "millwright boot migrate"]).await;
    plant.site.moved(&node, "active").await;
    plant.site.moved(&node, "deprovisioning").await;
    fails("r-2", &["an order is open", "erase"]).await;
    plant.site.moved(&node, "retired").await;
    let gone = plant.starts("r-3", json!({ "image": "debian" })).await.expect_err("nothing is linked any more");
    assert!(gone["message"].as_str().is_some_and(|m| m.contains("no boot node is linked")), "{gone}");
    // the same card again is another node, which nobody has approved
    let new = json!({ "mac_address": MAC, "machine_id": MACHINE, "workflow_id": "debian" });
    let id = plant.site.http.post("/api/v1/nodes", &new).await.ok()["id"].as_str().expect("an id").to_owned();
    fails("r-4", &["is discovered", &format!("millwright boot approve {id}")]).await;
    // a person's order is that person's
    plant.site.moved(&id, "pending").await;
    fails("r-5", &["another installation is under way", "tester"]).await;
    let token = plant.site.token(MAC).await.expect("an installer");
    plant.site.says(&token, MAC, "started", json!({})).await;
    plant.site.says(&token, MAC, "complete", json!({})).await;
    fails("r-6", &["is installed", &format!("millwright boot verify {id}")]).await;
    assert_eq!((plant.guest.resets(), plant.guest.tokens().len()), (0, 0), "nothing was touched");
}

/// The second of them never got so far that its machine was reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bmc_that_refuses_leaves_no_order_open() {
    let plant = Plant::new(Database::Sqlite).await;
    let no = Fault::Status(403, "{}".into());
    plant.guest.responder.faults.arm("POST", "ComputerSystem.Reset", no, 100);
    let run = plant.repave("r-1").await;
    plant.ended(&run, "FAILED").await;
    plant.guest.responder.faults.disarm();
    assert_eq!(plant.state().await, "pending");
    assert_eq!(plant.site.node(&plant.node).await["order"]["closed_because"], "canceled");
    assert!(plant.guest.ask_again().await.is_none(), "it is its disk that it boots");
    plant.boots_its_disk_next();
    plant.works_again("r-2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_is_for_the_bearer_of_the_token_and_must_be_there() {
    let plant = Plant::new(Database::Sqlite).await;
    let repave = async |request: &str, name: &str| {
        plant.starts(request, json!({ "image": "debian", "user_data_ref": name })).await.expect("starts")
    };
    for (request, name, words) in [("r-1", "worker", "is not there"), ("r-2", "bmc", "of kind bmc")] {
        let run = repave(request, name).await;
        let error = plant.ended(&run, "FAILED").await["error"].clone();
        assert_eq!(error["code"], "CREDENTIAL_MISSING", "{error}");
        assert!(error["message"].as_str().is_some_and(|m| m.contains(words)), "{error}");
        assert_eq!((plant.guest.resets(), plant.state().await.as_str()), (0, "active"), "nothing was touched");
    }
    let data = "#cloud-config\nwrite_files: [{path: /etc/token, content: hunter2}]\n";
    let new = NewCredential {
        name: "worker".into(),
        kind: "user-data".into(),
        user_data: Secret::new(data),
        ..NewCredential::default()
    };
    plant.site.server.service.set_credential(&admin(), new).await.expect("is set");
    let run = repave("r-3", "worker").await;
    plant.ended(&run, "SUCCEEDED").await;
    assert_eq!(plant.guest.seeds(), [data]);
    // not without the token, not with another's, and not once it has served
    let token = plant.guest.tokens().pop().expect("a token");
    let forged = token.replace(|c: char| c.is_ascii_hexdigit(), "0");
    for bearer in [None, Some("hunter2"), Some(forged.as_str()), Some(token.as_str())] {
        let (status, body) =
            plant.guest.http("GET", "/api/v1/boot/seed/user-data", bearer, "").await.expect("an answer");
        assert!(status >= 400 && !body.contains("hunter2"), "{status}: {body}");
    }
    let log = plant.site.server.fleet.store.read(|tx| store::log_after(tx, 0, 10_000)).await.expect("the log");
    assert!(!format!("{log:?}{}", plant.log(&run, "repave").await).contains("hunter2"));
}

/// What is in the image store is written by the workflow that is assigned, if that writes images at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_of_the_store_is_written_by_the_assigned_workflow() {
    let plant = Plant::new(Database::Sqlite).await;
    let digest = "ab".repeat(32);
    for (name, sha256) in [("base", "cd".repeat(32)), ("noble", digest.clone())] {
        let new = service::NewImage { name: name.into(), sha256, bytes: 5, kind: "raw".into() };
        plant.site.server.service.name_image(&admin(), new).await.expect("is named");
    }
    let run = plant.starts("r-1", json!({ "image": "noble" })).await.expect("starts");
    let error = plant.ended(&run, "FAILED").await["error"].clone();
    assert!(error["message"].as_str().is_some_and(|m| m.contains("writes no image")), "{error}");
    let (cmdline, template) = ("img=${image_url} sum=${image_sha256}", "img=${image_url} sum=${image_sha256}\n");
    let workflow = json!({ "id": "imager", "kernel": "k", "image": "base", "cmdline": cmdline, "template": template });
    plant.site.http.post("/api/v1/workflows", &workflow).await.ok();
    plant.site.patch(&plant.node, &json!({ "workflow_id": "imager" })).await.ok();
    let run = plant.starts("r-2", json!({ "image": "noble" })).await.expect("starts");
    plant.ended(&run, "SUCCEEDED").await;
    let order = plant.guest.orders().pop().expect("an order");
    assert!(order.contains(&format!("image_url='{}/images/sha256/{digest}'", plant.site.server.url)), "{order}");
    // and so say the variables, in the command line and in the user-data
    let told = format!("img={}/images/sha256/{digest} sum={digest}", plant.site.server.url);
    let script = plant.guest.installers().pop().expect("an installer");
    assert!(script.contains(&format!(" {told} millwright.url=")), "{script}");
    assert!(plant.guest.seeds().iter().any(|seed| seed.contains(&told)), "{:?}", plant.guest.seeds());
    let row = plant.site.node(&plant.node).await["order"].clone();
    assert_eq!((row["workflow_id"].as_str(), row["image"].as_str()), (Some("imager"), Some("noble")), "{row}");
    // a name that nobody knows is found before anything begins
    let no = plant.starts("r-3", json!({ "image": "nobble" })).await.expect_err("unknown");
    assert_eq!(no["reason"], "CAPABILITY_MISSING", "{no}");
    assert!(no["message"].as_str().is_some_and(|m| m.contains("neither a boot workflow nor an image")), "{no}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_means_are_used_where_network_boot_cannot_and_the_log_says_why() {
    let plant = Plant::new(Database::Sqlite).await;
    let dc = provider(&plant.site.server.fleet);
    let id = MachineId::from_text(MACHINE);
    let of = id.clone();
    let store = &plant.site.server.fleet.store;
    let machine = store.read(move |tx| store::machine::get(tx, &of)).await.expect("reads").expect("a machine");
    let target = Target::of(&machine);
    let op = Operation {
        execution: domain::ExecutionId::from_text("exe_1"),
        stage: "repave".into(),
        attempt: 1,
        fence: "1.1".into(),
    };
    dc.install(&target, MEDIA_IMAGE, "", &op).await.map(drop).expect("begun");
    let notes = target.notes.take().join("\n");
    assert!(notes.contains("not by network boot") && notes.contains("neither a boot workflow"), "{notes}");
    assert!(plant.guest.responder.done_to(1).iter().any(|what| matches!(what, What::MediaIn(_))));
    assert_eq!(plant.state().await, "active", "no order was opened");
}

/// Its serial number alone would only propose it; a run that has just told it to boot from the network expects it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_a_run_has_told_to_boot_from_the_network_is_linked_at_once() {
    for told in [false, true] {
        // the run waits for its system, which comes up after it has asked
        let plant = Plant::unlinked(Database::Sqlite, true).await;
        plant.guest.network_first.store(true, std::sync::atomic::Ordering::Release);
        let netboot = json!({ "name": "netboot", "netboot": { "mode": "PXE" } });
        let reboot = json!({ "name": "reboot", "reboot": { "mode": "force" } });
        let steps = if told { vec![netboot, reboot] } else { vec![reboot] };
        let run = plant.carries_out(&steps).await;
        let node = eventually("it is discovered", || async {
            let found = plant.site.http.get("/api/v1/nodes").await.ok()["nodes"][0].clone();
            found.is_object().then_some(found)
        })
        .await;
        let (linked, proposed) = (node["machine_id"].as_str(), node["proposed_machine_id"].as_str());
        let wanted = if told { (Some(MACHINE), None) } else { (None, Some(MACHINE)) };
        assert_eq!((linked, proposed), wanted, "{node}");
        plant.ended(&run, "SUCCEEDED").await;
    }
}
