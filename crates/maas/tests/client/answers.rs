//! What each answer means: what is certain, what is not, who must act; and that no answer takes a secret into a message.

use crate::fixtures::{
    CONSUMER, ID, NOT_THERE, SECRET, STATE_REFUSAL, WHO, access, assert_no_secret, client, impatient, mac, machine,
    machine_at, options,
};
use crate::server::{Asked, Reply, Server};
use domain::Secret;
use domain::site::{Erase, LinkMode};
use maas::Clients;
use provider::{
    Changes, Commissioning, Deployment, Maas, MaasClients as _, NewLink, NewMachine, PowerAccess, ProviderError,
    ProviderResult, Release, Which,
};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn deployment(user_data: &str) -> Deployment {
    Deployment {
        series: "noble".into(),
        kernel: String::new(),
        user_data: Secret::new(user_data),
        hardware_sync: false,
        agent_name: String::new(),
        comment: String::new(),
    }
}

async fn deploy(maas: &dyn Maas) -> ProviderResult<()> {
    maas.deploy(ID, &deployment("")).await
}

/// `class reason`, or `unknown`.
fn verdict(no: &ProviderError) -> String {
    match no {
        ProviderError::Refused { class, reason, .. } => format!("{class} {}", reason.as_str()),
        ProviderError::Unknown { .. } => "unknown".to_owned(),
    }
}

/// The noes to a change, and to a read of the same thing.
#[tokio::test]
async fn each_no_is_told_apart() {
    let json = |status, body: &str| Reply::say(status, "application/json; charset=utf-8", body);
    let page = || Reply::say(409, "text/html", "<html>Conflict, sorry</html>").with("retry-after", "60");
    let same = |text: &'static str| (text, text);
    let all: Vec<(&str, Reply, (&str, &str), &str)> = vec![
        (
            "wrong state",
            Reply::text(409, "Can't deploy a machine that is in the 'New' state"),
            same("conflict WRONG_STATE"),
            "'New' state",
        ),
        ("serialisation", page(), same("transient PROVIDER_REFUSED"), "busy"),
        ("state refusal", json(400, STATE_REFUSAL), same("conflict WRONG_STATE"), "Commission is not available"),
        (
            "validation",
            json(400, r#"{"distro_series": ["'x' is not valid."]}"#),
            same("invalid_input PROVIDER_REFUSED"),
            "distro_series: 'x' is not valid.",
        ),
        (
            "loose text",
            Reply::text(400, "Machine is missing a boot disk"),
            same("invalid_input PROVIDER_REFUSED"),
            "missing a boot disk",
        ),
        (
            "mac in use",
            json(400, r#"{"mac_addresses": ["MAC address 52:54:00:83:8e:9e already in use on one."]}"#),
            same("conflict IDENTITY_TAKEN"),
            "in use on one",
        ),
        ("forbidden", Reply::text(403, ""), same("needs_operator PERMISSION_MISSING"), "administrator"),
        (
            "wrong key",
            Reply::say(401, "text/html", "Authorization Error: Invalid API key."),
            same("needs_operator LOGIN_REFUSED"),
            "API key",
        ),
        (
            "old clock",
            Reply::say(401, "text/html", "Authorization Error: 'Expired timestamp: given 1 and now 2'"),
            same("needs_operator LOGIN_REFUSED"),
            "NTP",
        ),
        (
            "old api",
            Reply::text(410, "The 1.0 API is no longer available."),
            same("needs_operator BAD_ANSWER"),
            "no longer available",
        ),
        (
            "another web server",
            Reply::say(404, "text/html", "<html>404</html>"),
            same("needs_operator BAD_ANSWER"),
            "/MAAS",
        ),
        (
            "wrong path",
            Reply::text(404, "Unknown API endpoint: /MAAS/api/2.0/x."),
            same("needs_operator BAD_ANSWER"),
            "Unknown API endpoint",
        ),
        (
            "redirect",
            Reply::say(302, "text/html", "").with("location", "https://evil.example/"),
            same("needs_operator BAD_ANSWER"),
            "redirect",
        ),
        ("method", Reply::say(405, "text/html", ""), same("needs_operator BAD_ANSWER"), "405"),
        (
            "busy proxy",
            Reply::text(429, "slow down").with("retry-after", "0"),
            same("transient PROVIDER_REFUSED"),
            "slow down",
        ),
        (
            "bmc",
            Reply::text(500, "Could not contact node's BMC"),
            ("unknown", "transient PROVIDER_REFUSED"),
            "Could not contact",
        ),
        (
            "no rack",
            Reply::text(503, "No rack controllers can access the BMC"),
            ("unknown", "dependency_down PROVIDER_REFUSED"),
            "No rack",
        ),
        (
            "proxy",
            Reply::say(504, "text/html", "<html>gateway</html>"),
            ("unknown", "dependency_down PROVIDER_REFUSED"),
            "504",
        ),
    ];
    for (name, reply, (change, read), says) in all {
        let answer = reply.clone();
        let server = Server::start(move |_| answer.clone()).await;
        let maas = client(&server.url);
        let no = deploy(&*maas).await.expect_err(name);
        assert_eq!(verdict(&no), change, "{name}: {no}");
        let text = no.to_string();
        assert!(text.contains(says), "{name}: {text}");
        assert!(text.contains("site oslo") && text.contains("deploying machine 4g4aaq"), "{name}: {text}");
        assert!(!text.contains("<html>") && !text.contains("evil"), "{name}: {text}");
        assert_eq!(server.asked().len(), 1, "{name}: a change is never sent twice");
        let no = maas.machine(ID).await.expect_err(name);
        assert_eq!(verdict(&no), read, "{name}: {no}");
        let repeated = read.starts_with("transient") || read.starts_with("dependency_down");
        // a site that says when to come back in earnest is not asked in that time
        let reads = if repeated && name != "serialisation" { 3 } else { 1 };
        assert_eq!(server.asked().len(), 1 + reads, "{name}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_none_and_cannot_be_changed() {
    let server = Server::start(|_| Reply::say(404, "text/plain", NOT_THERE)).await;
    let maas = client(&server.url);
    assert_eq!(maas.machine(ID).await, Ok(None));
    assert_eq!(maas.delete(ID).await, Ok(false));
    assert_eq!(verdict(&deploy(&*maas).await.expect_err("gone")), "conflict WRONG_STATE");
    assert_eq!(verdict(&maas.power_now(ID).await.expect_err("gone")), "conflict WRONG_STATE");
}

#[tokio::test]
async fn an_unknown_operation_is_a_missing_capability_and_without_one_a_missing_login() {
    let server = Server::start(|asked| {
        let op = if asked.op().is_empty() { "None" } else { asked.op() };
        Reply::text(400, &format!("Unrecognised signature: method={} op={op}", asked.method))
    })
    .await;
    let maas = client(&server.url);
    assert_eq!(verdict(&deploy(&*maas).await.expect_err("no such op")), "invalid_input CAPABILITY_MISSING");
    let no = maas.machines(&Which::All).await.expect_err("nobody");
    assert_eq!(verdict(&no), "needs_operator LOGIN_REFUSED");
}

/// The change may have been made: before the answer was an error, before it was lost, before it was made unreadable.
#[tokio::test]
async fn a_change_without_a_good_answer_is_unknown_and_a_read_is_not() {
    let replies = [
        ("500 after the commit", Reply::text(500, "BMC refused")),
        ("no answer", Reply::Hang),
        ("half an answer", Reply::Stall),
        ("closed", Reply::Close),
        ("no HTTP", Reply::Raw(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec())),
        ("cut off", Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"system".to_vec())),
        ("a page", Reply::say(200, "text/html", "<html>Please log in</html>")),
        ("another machine", Reply::json(machine().replace(ID, "zzzzzz"))),
        ("nothing", Reply::json("null")),
        ("a list", Reply::json("[]")),
        ("too much", Reply::json(format!("{{\"x\": \"{}\"}}", "x".repeat(5 << 20)))),
    ];
    for (name, reply) in replies {
        let answer = reply.clone();
        let server = Server::start(move |_| answer.clone()).await;
        let options = if matches!(reply, Reply::Hang | Reply::Stall) { impatient() } else { options() };
        let maas = Clients::new(options).client(&access("oslo", &server.url)).expect("a client");
        let release = Release { erase: Erase::Quick, comment: String::new() };
        let no = maas.release(ID, &release).await.expect_err(name);
        assert_eq!(verdict(&no), "unknown", "{name}: {no}");
        assert!(no.to_string().contains("releasing machine 4g4aaq"), "{no}");
        assert_eq!(server.asked().len(), 1, "{name}: a change is never sent twice");
        let no = maas.machine(ID).await.expect_err(name);
        assert!(matches!(no, ProviderError::Refused { .. }), "{name}: {no}");
    }
}

#[tokio::test]
async fn a_change_that_could_not_be_sent_was_not_made() {
    let no = deploy(&*client("http://127.0.0.1:1/MAAS")).await.expect_err("nobody listens");
    assert_eq!(verdict(&no), "dependency_down CONNECTION_REFUSED");
    let no = deploy(&*client("http://nowhere.invalid/MAAS")).await.expect_err("no such host");
    assert_eq!(verdict(&no), "dependency_down UNREACHABLE");
}

#[tokio::test]
async fn a_read_that_failed_for_a_moment_is_asked_again_and_a_question_to_a_bmc_is_not() {
    for first in [Reply::Close, Reply::text(502, ""), Reply::text(500, "x"), Reply::text(401, "Nonce already used: x")]
    {
        let tries = AtomicUsize::new(0);
        let server = Server::start(move |_| match tries.fetch_add(1, Ordering::SeqCst) {
            0 => first.clone(),
            _ => Reply::json(machine_at(4, "Ready")),
        })
        .await;
        let read = client(&server.url).machine(ID).await.expect("at the second attempt");
        assert_eq!((read.map(|m| m.status), server.asked().len()), (Some(4), 2));
    }
    let server = Server::start(|_| Reply::text(503, "No rack controllers can access the BMC of node one")).await;
    let no = client(&server.url).power_now(ID).await.expect_err("no rack");
    assert_eq!((verdict(&no).as_str(), server.asked().len()), ("transient PROVIDER_REFUSED", 1));
}

#[tokio::test]
async fn a_machine_that_maas_cannot_switch_off_is_said_to_be_one() {
    let server = Server::start(|_| Reply::json("null")).await;
    let no = client(&server.url).power_off(ID).await.expect_err("manual");
    assert_eq!(verdict(&no), "invalid_input CAPABILITY_MISSING");
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("whole").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A MAAS that repeats everything it was told, in every kind of answer.
#[tokio::test]
async fn no_answer_takes_a_secret_into_a_message_or_a_log() {
    const PASS: &str = "cnryPowerPassword77";
    const DATA: &str = "#cloud-config token: cnryBootstrapToken";
    let lines = Lines::default();
    let written = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || written.clone()).finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let echo = |asked: &Asked| {
        let everything: Vec<String> = asked.form.iter().map(|(name, value)| format!("{name} {value}")).collect();
        format!("{} {} {}", asked.headers["authorization"], everything.join(" "), DATA)
    };
    for status in [200, 400, 401, 403, 404, 409, 410, 418, 500, 503] {
        for json in [false, true] {
            let server = Server::start(move |asked| match (asked.op(), json) {
                ("whoami", _) => Reply::json(WHO),
                (_, true) => {
                    let said = echo(asked).replace(['\\', '"'], " ");
                    Reply::say(status, "application/json", format!("{{\"power_parameters\": [\"{said}\"]}}"))
                }
                (_, false) => {
                    Reply::text(status, &format!("Expected signature base string: &{SECRET} {}", echo(asked)))
                }
            })
            .await;
            let maas = client(&server.url);
            let parameters = [("power_pass", PASS), ("power_address", "192.0.2.1")];
            let power = PowerAccess {
                kind: "redfish".into(),
                parameters: parameters.map(|(name, value)| (name.to_owned(), Secret::new(value))).into(),
            };
            let new = NewMachine {
                architecture: "amd64/generic".into(),
                macs: vec![mac()],
                hostname: String::new(),
                description: String::new(),
                power: power.clone(),
                pool: String::new(),
                zone: String::new(),
            };
            assert_no_secret(&format!("{new:?} {:?}", deployment(DATA)), &[PASS, DATA]);
            let link = NewLink { mode: LinkMode::Auto, subnet: "1".into(), force: true };
            let noes = [
                maas.create(&new).await.map(drop).expect_err("no"),
                maas.change(ID, &Changes { power: Some(power), ..Changes::default() }).await.map(drop).expect_err("no"),
                maas.deploy(ID, &deployment(DATA)).await.expect_err("no"),
                maas.link(ID, 3, &link).await.expect_err("no"),
                maas.commission(ID, &Commissioning::default()).await.expect_err("no"),
                maas.machine(ID).await.map(drop).expect_err("no"),
            ];
            for (n, no) in noes.iter().enumerate() {
                // what was never told to it with this call is its own to repeat
                let secrets: &[&str] = match n {
                    0 | 1 => &[PASS],
                    2 => &[DATA, "I2Nsb3VkLWNvbmZpZyB0b2tlbjogY25yeUJvb3RzdHJhcFRva2Vu"],
                    _ => &[],
                };
                assert_no_secret(&format!("{no} {no:?}"), secrets);
                assert!(no.to_string().len() < 1500, "{no}");
            }
        }
    }
    drop(guard);
    let log = String::from_utf8_lossy(&lines.0.lock().expect("whole")).into_owned();
    assert!(log.contains("asked a MAAS"), "something was logged");
    assert_no_secret(&log, &[PASS, DATA, CONSUMER]);
}
