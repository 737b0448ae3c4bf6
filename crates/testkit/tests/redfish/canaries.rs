//! The password, and the token of the session, are in nothing that the adapter says: no error, no `Debug`, no trace.

use crate::fixture::{adapter, login, one, options, password, patient, traced};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use domain::Secret;
use domain::hardware::{BootOverride, PowerAction};
use domain::plan::BootMode;
use provider::Bmc as _;
use std::fmt::Write as _;
use testkit::canary;
use testkit::http_faults::Fault;
use testkit::redfish_responder::Responder;

#[tokio::test]
async fn no_secret_is_in_what_is_said() {
    let new = canary::plant("next");
    let mut said = String::new();
    let mut tokens = Vec::new();
    for sessions in [true, false] {
        let mut door = options();
        door.sessions = sessions;
        let (responder, bmc) = one(door).await;
        write!(said, "{bmc:?} {} {:?}", bmc.name(), bmc.describe().await).expect("text");
        tokens.extend(responder.tokens());
        let quoted = [basic(), password().to_owned(), responder.tokens().concat()].join(" ");
        let quoting = format!("{{\"error\": {{\"message\": \"{quoted}\"}}}}");
        for (method, fault) in [
            ("POST", Fault::Status(400, quoting.clone())),
            ("PATCH", Fault::Status(500, quoting.clone())),
            ("GET", Fault::Status(403, quoting.clone())),
            ("POST", Fault::LoseAnswer),
            ("PATCH", Fault::Truncate),
            ("GET", Fault::Malformed),
            ("", Fault::Status(401, quoting)),
        ] {
            responder.faults.arm(method, "/redfish/v1/", fault, 1);
            write!(said, "{:?}", bmc.state().await).expect("text");
            write!(said, "{:?}", bmc.power(PowerAction::ForceRestart).await).expect("text");
            let boot = BootOverride { mode: BootMode::Pxe, persistent: said.len().is_multiple_of(2) };
            write!(said, "{:?}", bmc.set_boot(Some(boot)).await).expect("text");
            write!(said, "{:?}", bmc.set_password("operator", &Secret::new(&new[..7])).await).expect("text");
            write!(said, "{:?}", bmc.set_password("nobody", &Secret::new(new.clone())).await).expect("text");
            responder.faults.disarm();
        }
        tokens.extend(responder.tokens());
    }
    // a controller that is not let in with
    let responder = Responder::start(options()).await;
    responder.set_password("operator", "another one");
    let bmc = adapter(&responder.endpoint(1), login(), patient());
    write!(said, "{:?}", bmc.state().await).expect("text");

    assert!(said.contains("LoginRefused") && said.contains("(a secret)"), "something was said:\n{said}");
    let traced = traced();
    assert!(traced.contains("ComputerSystem.Reset"), "something was traced");
    assert!(!tokens.is_empty());
    let mut secrets = vec![password().to_owned(), basic(), new[..12].to_owned()];
    secrets.extend(tokens);
    for secret in secrets {
        for (name, text) in [("said", &said), ("traced", &traced)] {
            assert!(!text.contains(&secret), "a secret is {name}");
        }
    }
}

fn basic() -> String {
    BASE64.encode(format!("operator:{}", password()))
}
