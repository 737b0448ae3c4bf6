//! JSON to messages and back: what is read and written again is the same; a plan that is accepted can be
//! resolved with any parameters, or says why not.

use crate::wire::shape;
use prost_reflect::{DynamicMessage, ReflectMessage as _};
use std::collections::BTreeMap;
use testkit::fuzz::Fuzz;
use testkit::samples::{sample_machine, sample_plan};

const MESSAGES: [&str; 6] = [
    "baremetal.v1.Plan",
    "baremetal.v1.Machine",
    "baremetal.v1.Run",
    "baremetal.v1.UpdateMachineRequest",
    "baremetal.v1.StartRunRequest",
    "millwright.v1.AuditEntry",
];

const WORDS: &[&str] = &[
    "\"plan_id\":",
    "\"steps\":[",
    "\"name\":",
    "\"timeout_seconds\":",
    "\"max_retries\":",
    "\"ssh\":{",
    "\"reboot\":{",
    "\"netboot\":{",
    "\"repave\":{",
    "\"join\":{",
    "\"verify\":{",
    "\"net\":{\"parameters\":{",
    "\"rma\":{\"action\":",
    "\"mode\":",
    "\"image\":",
    "\"labels\":{",
    "\"spec\":{",
    "\"status\":{",
    "\"conditions\":[",
    "\"last_transition\":\"2026-01-29T15:10:00Z\"",
    "\"update_mask\":\"a,b\"",
    "\"parameters\":{\"image\":\"x\"}",
    "\"planId\":",
    "null",
    "{}",
    "[]",
    "\\u0000",
    "1e30",
    "\"9\"",
    "ubuntu",
    "PXE",
    "bmc",
    "\"9999-12-31T23:59:59.999999999Z\"",
    "\"0001-01-01T00:00:00Z\"",
];

/// Bound by what a request can hold, not by what it sent.
const MESSAGE_MAX: usize = 200_000;

#[test]
fn json() {
    let mut seeds: Vec<String> = vec![format!("0{}", sample_plan()), format!("1{}", sample_machine())];
    seeds.push("2{\"run_id\":\"r\",\"phase\":\"RUNNING\",\"steps\":[{\"name\":\"a\",\"state\":\"FAILED\",\"started_at\":\"2026-01-29T15:10:00.5Z\"}],\"error\":{\"code\":\"C\",\"retryable\":true},\"version\":\"7\"}".into());
    seeds.push(
        "3{\"machine\":{\"machine_id\":\"m\",\"labels\":{\"a\":\"b\"}},\"update_mask\":\"labels.a,spec\"}".into(),
    );
    seeds.push(
        "4{\"request_id\":\"q\",\"machine_id\":\"m\",\"type\":\"REPAVE\",\"parameters\":{\"image\":\"i\"}}".into(),
    );
    seeds.push("5{}".into());
    Fuzz::new("json", module_path!()).seeds(seeds).words(WORDS).inputs(6_000).run(|| {
        let descriptors = MESSAGES.map(|name| api::json::descriptor(name).unwrap_or_else(|e| panic!("{e}")));
        move |input| {
            let Some((which, text)) = input.split_first() else { return Ok("nothing".to_owned()) };
            let descriptor = &descriptors[usize::from(which.wrapping_sub(b'0')) % MESSAGES.len()];
            let value = match serde_json::from_slice::<api::json::Strict>(text) {
                Ok(value) => value.0,
                Err(e) => return Ok(shape(&e.to_string())),
            };
            let message = match api::json::read(descriptor, value) {
                Ok(message) => message,
                Err(e) if e.details.contains_key("field") && e.message.len() < MESSAGE_MAX => {
                    return Ok(shape(&e.message));
                }
                Err(e) => return Err(format!("an error that does not name its field: {e:?}")),
            };
            again(&message)?;
            if descriptor.full_name() == MESSAGES[0] { plan(&message) } else { Ok(format!("a {}", descriptor.name())) }
        }
    });
}

/// Written and read again it is the same; so it is by the wire.
fn again(message: &DynamicMessage) -> Result<(), String> {
    use prost::Message as _;
    let text = serde_json::to_string(&api::json::Json(message)).map_err(|e| format!("does not write: {e}"))?;
    let value = serde_json::from_str(&text).map_err(|e| format!("writes what is no JSON: {e}: {text}"))?;
    let read =
        api::json::read(&message.descriptor(), value).map_err(|e| format!("reads not what it wrote: {e}: {text}"))?;
    let bytes = message.encode_to_vec();
    let decoded = api::json::decode(message.descriptor(), &bytes).map_err(|e| e.to_string())?;
    let by_json = api::json::decode(message.descriptor(), &read.encode_to_vec()).map_err(|e| e.to_string())?;
    // what was set to its default is the same as what was not
    if by_json != decoded || serde_json::to_string(&api::json::Json(&decoded)).is_ok_and(|again| again != text) {
        return Err(format!("is another after {text}"));
    }
    Ok(())
}

fn plan(message: &DynamicMessage) -> Result<String, String> {
    let plan = message.transcode_to().map_err(|e| e.to_string())?;
    let checked = api::plan_from_proto(plan).and_then(|plan| plan.validate().map(|()| plan));
    let plan = match checked {
        Ok(plan) => plan,
        Err(e) if e.details.contains_key("field") => return Ok(shape(&e.message)),
        Err(e) => return Err(format!("a bad plan without its field: {e:?}")),
    };
    let mut shapes = String::new();
    for (name, value) in
        [("image", "x"), ("mode", "PXE"), ("command", ""), ("cluster_ref", "c"), ("nothing", "1"), ("", "")]
    {
        let parameters = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        match plan.resolve(&parameters, "") {
            Ok(_) => shapes.push('+'),
            Err(e) if !e.message.is_empty() => shapes.push('-'),
            Err(e) => return Err(format!("refused without a word: {e:?}")),
        }
    }
    Ok(format!("a plan {shapes} of {}", plan.steps.len().min(9)))
}
