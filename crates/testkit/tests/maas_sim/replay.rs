//! Conformance: the conversation that was recorded with a real MAAS, said again. Every status, content type and header,
//! and every field of a body that a client reads, must be what it was; what was made up by the server (ids, times) must
//! be the same thing each time.

use crate::caller::{Answer, Body, Signature, now, send};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use testkit::maas_sim::{BmcMood, MaasSim, Options, Pace, Racked, Trouble};

const RECORDED: &str = include_str!("recorded.jsonl");

/// Where the simulator may differ, and why.
const TOLERATED: &[(&str, &str)] = &[];

const ONE: &str = "52:54:00:83:8e:9e";
const ZERO: &str = "52:54:00:11:61:9e";

/// What the recording stood on, and what was done to it in between without being recorded.
fn scenery(sim: &MaasSim) {
    let one = Racked::new(ONE, "192.0.2.194").known_as("71bbe021-b592-5d7c-b96d-bc2c32d8912b", "SN-one");
    sim.rack(one.lease("10.20.0.108"));
    sim.rack(Racked::new(ZERO, "192.0.2.141").lease("10.20.0.108"));
}

/// Before this exchange.
fn arrange(sim: &MaasSim, label: &str, earlier: usize, one: &str, zero: &str) {
    match label {
        "commission: bmc fails" => sim.bmc(ONE, BmcMood::Dead),
        "commission: starts" => sim.bmc(ONE, BmcMood::Fine),
        // the machine is on its way, and not there yet
        "Commissioning: empty script list" | "Deploying: deploy again" => assert!(sim.step(one)),
        "commission: will fail" => {
            sim.finish(one);
            sim.trouble(ONE, Trouble::CommissioningFails, 1);
        }
        "commission: tests will fail" => sim.trouble(ONE, Trouble::TestsFail, 1),
        "deploy: curtin will fail" => sim.trouble(ONE, Trouble::CurtinFails, 1),
        "after one hardware sync" => sim.sync(one),
        // seen, and not kept: it was broken, fixed and released
        "deploy for erase" => {
            let admin = sim.as_account("admin");
            admin.mark_broken(one, "on trial");
            admin.mark_fixed(one);
            admin.release(one);
            sim.finish(one);
        }
        "release with erase, will fail" => {
            sim.finish(one);
            sim.trouble(ONE, Trouble::EraseFails, 1);
        }
        "after failed commissioning"
        | "after failed testing"
        | "after aborted deploy"
        | "after failed deployment"
        | "released"
        | "Deployed machine, whole"
        | "after failed erase"
        | "after erase"
        | "release with erase=0"
        | "deploy for erase=false"
        | "release with erase=false"
        | "put pool and zone"
        | "delete Deployed" => sim.finish(one),
        "commissioned with skip_storage=0" | "commissioned with skip_storage=false" | "which series it got" => {
            sim.finish(zero);
        }
        _ => assert!(earlier < 2, "{label} is said more often than is known"),
    }
}

/// Values that are learnt where they are first answered.
#[derive(Default)]
struct Learnt(BTreeMap<String, String>);

impl Learnt {
    fn fill(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// `{name}` stands for one value, and no other name of its kind stands for the same.
    fn learn(&mut self, name: &str, value: &str) -> Result<(), String> {
        let kind = |name: &str| name.trim_matches(['{', '}']).trim_end_matches(char::is_numeric).to_owned();
        match self.0.get(name) {
            Some(known) if known == value => Ok(()),
            Some(known) => Err(format!("{name} was {known} and is now {value}")),
            None => {
                if let Some((other, _)) = self.0.iter().find(|(n, v)| kind(n) == kind(name) && *v == value) {
                    return Err(format!("{name} is {value}, as {other} is"));
                }
                self.0.insert(name.to_owned(), value.to_owned());
                Ok(())
            }
        }
    }

    fn compare(&mut self, at: &str, wanted: &Value, given: Option<&Value>, found: &mut Vec<String>) {
        let Some(given) = given else {
            if wanted != "<absent>" {
                found.push(format!("{at} is missing"));
            }
            return;
        };
        match (wanted, given) {
            (Value::String(wanted), given) => self.compare_text(at, wanted, given, found),
            (Value::Object(wanted), Value::Object(given)) => {
                // what is learnt comes first: others tell of it
                let learns = |value: &Value| value.as_str().is_some_and(|text| text.starts_with('{'));
                let (first, rest): (Vec<_>, Vec<_>) = wanted.iter().partition(|(_, value)| learns(value));
                for (name, value) in first.into_iter().chain(rest) {
                    self.compare(&format!("{at}.{name}"), value, given.get(name), found);
                }
                // a form that is refused says which fields, and no others
                if at == "body" && wanted.values().all(Value::is_array) && wanted.len() != given.len() {
                    found.push(format!("{at} has {:?}", given.keys().collect::<Vec<_>>()));
                }
            }
            (Value::Array(wanted), Value::Array(given)) => {
                if wanted.len() != given.len() {
                    found.push(format!("{at} has {} instead of {}: {given:?}", given.len(), wanted.len()));
                }
                for (number, (wanted, given)) in wanted.iter().zip(given).enumerate() {
                    self.compare(&format!("{at}[{number}]"), wanted, Some(given), found);
                }
            }
            (wanted, given) if wanted == given => {}
            (wanted, given) => found.push(format!("{at} is {given} instead of {wanted}")),
        }
    }

    fn compare_text(&mut self, at: &str, wanted: &str, given: &Value, found: &mut Vec<String>) {
        let plain = match given {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match wanted {
            "<n>" if given.is_number() => {}
            "<*>" if !given.is_null() => {}
            "<time>" if is_time(&plain) => {}
            _ if wanted.starts_with('{') && wanted.ends_with('}') && !given.is_null() => {
                if let Err(why) = self.learn(wanted, &plain) {
                    found.push(format!("{at}: {why}"));
                }
            }
            _ if !given.is_string() || !fits(&self.fill(wanted), &plain) => {
                found.push(format!("{at} is {given} instead of {wanted:?}"));
            }
            _ => {}
        }
    }
}

/// `2026-11-15T07:57:39.030Z`.
fn is_time(text: &str) -> bool {
    text.len() == 24 && text.ends_with('Z') && text.as_bytes()[10] == b'T' && text.as_bytes()[19] == b'.'
}

/// `<*>` is anything.
fn fits(wanted: &str, given: &str) -> bool {
    let parts: Vec<&str> = wanted.split("<*>").collect();
    let [first, rest @ ..] = parts.as_slice() else { return false };
    let Some(mut left) = given.strip_prefix(first) else { return false };
    let Some((last, middle)) = rest.split_last() else { return left.is_empty() };
    for part in middle {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

fn signature(sim: &MaasSim, how: &str, kept: &mut Option<Signature>) -> Option<Signature> {
    let key = sim.key();
    let mut signature = Signature::new(&key);
    let part = |at: usize, with: &str| {
        let mut parts: Vec<&str> = key.split(':').collect();
        parts[at] = with;
        parts.join(":")
    };
    match how {
        "" => {}
        "none" => return None,
        "bad consumer" => signature.key = part(0, "x"),
        "bad token" => signature.key = part(1, "x"),
        "bad secret" => signature.key = part(2, "x"),
        "keeps its nonce" => *kept = Some(signature.clone()),
        "nonce of before" => return kept.clone(),
        "10 minutes old" => signature.timestamp -= 600,
        "10 minutes ahead" => signature.timestamp += 600,
        left_out => signature.without = left_out.strip_prefix("no ").expect("a parameter").to_owned(),
    }
    Some(signature)
}

/// What differs.
fn judge(exchange: &Value, answer: &Answer, learnt: &mut Learnt) -> Vec<String> {
    let mut found = Vec::new();
    let status = exchange["status"].as_u64().expect("a status");
    if u64::from(answer.status) != status {
        found.push(format!("answered with {} instead of {status}: {}", answer.status, answer.text()));
        return found;
    }
    let kind = exchange["type"].as_str().expect("a type");
    if answer.header("content-type") != Some(kind) {
        found.push(format!("of type {:?} instead of {kind}", answer.header("content-type")));
    }
    if answer.header("x-maas-api-hash").is_none() {
        found.push("without the hash of the API".to_owned());
    }
    for (name, value) in exchange["headers"].as_object().into_iter().flatten() {
        if answer.header(name) != value.as_str() {
            found.push(format!("{name} is {:?} instead of {value}", answer.header(name)));
        }
    }
    let given = if kind.starts_with("application/json") { answer.json() } else { Value::String(answer.text()) };
    learnt.compare("body", &exchange["body"], Some(&given), &mut found);
    found
}

#[tokio::test]
async fn the_recorded_conversation_gets_the_recorded_answers() {
    let sim = MaasSim::start(Options { pace: Pace::Manual, time: Arc::new(now), ..Options::default() }).await;
    scenery(&sim);
    let (mut learnt, mut kept, mut said) = (Learnt::default(), None, BTreeMap::<String, usize>::new());
    let mut differences = Vec::new();
    let mut exchanges = 0;
    // the first line says what it is
    for line in RECORDED.lines().skip(1) {
        let exchange: Value = serde_json::from_str(line).expect("JSON");
        let label = exchange["label"].as_str().expect("a label");
        let earlier = said.entry(label.to_owned()).or_default();
        arrange(&sim, label, *earlier, learnt.get("{one}"), learnt.get("{zero}"));
        *earlier += 1;
        let path = learnt.fill(exchange["path"].as_str().expect("a path"));
        let form: Vec<(String, String)> = exchange["form"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pair| (pair[0].as_str().expect("a name").to_owned(), learnt.fill(pair[1].as_str().expect("a value"))))
            .collect();
        let body = if exchange["json"].is_null() { Body::Form(&form) } else { Body::Json(&exchange["json"]) };
        let signature = signature(&sim, exchange["auth"].as_str().unwrap_or_default(), &mut kept);
        let method = exchange["method"].as_str().expect("a method");
        let answer = send(&sim, method, &path, signature.as_ref(), body).await.expect("an answer");
        let tolerated = TOLERATED.iter().any(|(name, _)| *name == label);
        let found = judge(&exchange, &answer, &mut learnt);
        assert!(!tolerated || !found.is_empty(), "{label} is tolerated, and does not differ");
        differences.extend(found.iter().filter(|_| !tolerated).map(|why| format!("{label}: {why}")));
        exchanges += 1;
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    assert_eq!(exchanges, 182, "the whole of it was said");
}

/// The comparison can fail: it is shown what it is there to find.
#[test]
fn a_difference_is_found() {
    let differs = |wanted: Value, given: Value| {
        let (mut learnt, mut found) = (Learnt::default(), Vec::new());
        learnt.compare("body", &wanted, Some(&given), &mut found);
        !found.is_empty()
    };
    use serde_json::json;
    assert!(!differs(json!({"a": 1, "b": "<*>"}), json!({"a": 1, "b": "x", "c": 2})));
    assert!(differs(json!({"a": 1}), json!({"a": 2})));
    assert!(differs(json!({"a": null}), json!({})));
    assert!(differs(json!({"a": "<n>"}), json!({"a": null})));
    assert!(differs(json!({"a": "<time>"}), json!({"a": "yesterday"})));
    assert!(differs(json!({"a": "<absent>"}), json!({"a": "10.0.0.1"})));
    assert!(differs(json!({"a": ["wrong"]}), json!({"a": ["wrong"], "b": ["too"]})));
    assert!(differs(json!([1, 2]), json!([1])));
    assert!(differs(json!(["{nic1}", "{nic1}"]), json!([1, 2])));
    assert!(differs(json!(["{nic1}", "{nic2}"]), json!([1, 1])));
    assert!(differs(json!("Nonce <*> used"), json!("Nonce x lost")));
}
