//! What installers report: any body, with any token, through both ports and both paths.
//!
//! Promised: it counts only with the token of that machine's present attempt; what is refused changes nothing, and no
//! report changes another machine; what is kept is bounded and printable, and people can still read the node.

use crate::boot_query::replaced;
use crate::boot_site::{BootSite, Installing};
use crate::wire::of_rest;
use domain::boot_node::BootNode;
use domain::{Error, Reason};
use serde_json::Value;
use service::Report;
use testkit::fuzz::{Fuzz, Verdict};

/// Larger than a report may be.
const HUGE: usize = 300_000;
/// What may be kept of an installer's lines, of an error and of a document.
const TAIL_MAX: usize = 8 * 1024;
const ERROR_MAX: usize = 1024;
const DOCUMENT_MAX: usize = 64 * 1024;
const CLAIM_MAX: usize = 128;

// which port, which path, a line with the value of Authorization, the body
const SEEDS: &[&str] = &[
    r#"0rBearer GOOD
{"mac_address":"MACA","installation_status":"progress","installation_progress":40,"log_lines":["writing /dev/vda","a\u001b[31mb"]}"#,
    r#"1rBearer GOOD
{"mac_address":"MACA","installation_status":"complete","evidence":{"method":"zeros"}}"#,
    r#"0rBearer GOOD
{"mac_address":"MACA","installation_status":"failed","installation_error":"no disk\nis\u0000 there"}"#,
    r#"1r-
{"mac_address":"MACA","token":"GOOD","installation_status":"started"}"#,
    r#"0sBearer GOOD
{"installation_status":"progress","installation_progress":7}"#,
    r#"0rBearer OLD
{"mac_address":"MACA","installation_status":"complete"}"#,
    r#"1rBearer OTHER
{"mac_address":"MACA","installation_status":"complete"}"#,
    r#"0rBearer OTHER
{"mac_address":"MACB","installation_status":"progress","installation_progress":100}"#,
    r#"0sBearer OTHER
{"mac_address":"MACB","installation_status":"failed","installation_error":"x"}"#,
    r#"1rBearer DONE
{"mac_address":"MACC","installation_status":"started","log_lines":["again"]}"#,
    r#"0rBearer FORGED
{"mac_address":"MACA","installation_status":"complete"}"#,
    r#"1r-
{"mac_address":"MACA","hostname":"web-1\nx","vendor":"Acme","model":"B","serial_number":"S","system_uuid":"U","ip_address":"10.0.0.1"}"#,
    r#"0r-
{"mac_address":"MACC","facts":{"disks":[{"name":"sda","bytes":1e15}],"nics":[]}}"#,
    r#"0r-
{"mac_address":"MACA","facts":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":0}}}}}}}}}}}}}}}}}}"#,
    r#"1rBearer GOOD
{"mac_address":"MACA","mac_address":"MACB","installation_progress":99999999999999999999}"#,
    "0rBearer GOOD\n{\"mac_address\":\"MACA\",\"hostname\":\"\u{202e}\u{2028}\"}",
    "1rBearer GOOD\n[\"MACA\",null,null]",
    "0rBearer GOOD\n{\"mac_address\":\"MACA\",\"installation_status\":\"progress\",\"log_lines\":[\"HUGE\"]}",
    "0rBasic GOOD\n{\"mac_address\":\"52:54:00:ff:ff:ff\",\"installation_status\":\"started\"}",
    "1x\n",
];

const WORDS: &[&str] = &[
    "GOOD",
    "OLD",
    "OTHER",
    "DONE",
    "FORGED",
    "HUGE",
    "MACA",
    "MACB",
    "MACC",
    "Bearer ",
    "\"token\":",
    "\"mac_address\":",
    "\"installation_status\":",
    "\"installation_progress\":",
    "\"installation_error\":",
    "\"log_lines\":[",
    "\"facts\":{",
    "\"evidence\":{",
    "\"hostname\":",
    "\"serial_number\":",
    "started",
    "progress",
    "complete",
    "failed",
    "\\u0000",
    "\\u001b",
    "\\n",
    "[[[[[[[[",
    "{\"a\":",
];

/// Two that are being installed, and one that was.
struct Plant {
    site: BootSite,
    a: Installing,
    b: Installing,
    c: Installing,
}

impl Plant {
    fn new() -> Self {
        let mut site = BootSite::new();
        let (a, b, c) = (site.installing(), site.installing(), site.installing());
        site.says(&c.mac, &c.token, "complete");
        // or nothing below would prove anything
        site.says(&a.mac, &a.token, "progress");
        Self { site, a, b, c }
    }

    fn filled(&self, text: &[u8]) -> Vec<u8> {
        let last = if self.a.token.ends_with('0') { "1" } else { "0" };
        let forged = format!("{}{last}", &self.a.token[..self.a.token.len() - 1]);
        let mut text = text.to_vec();
        for (word, with) in [
            ("MACA", &self.a.mac),
            ("MACB", &self.b.mac),
            ("MACC", &self.c.mac),
            ("GOOD", &self.a.token),
            ("OLD", &self.a.old),
            ("OTHER", &self.b.token),
            ("DONE", &self.c.token),
            ("FORGED", &forged),
            ("HUGE", &"x".repeat(HUGE)),
        ] {
            text = replaced(&text, word.as_bytes(), with.as_bytes());
        }
        text
    }

    fn nodes(&self) -> [BootNode; 3] {
        [&self.a, &self.b, &self.c].map(|it| self.site.node(&it.mac))
    }

    fn reported(&mut self, input: &[u8]) -> Verdict {
        let end = input.iter().position(|b| *b == b'\n').unwrap_or(input.len());
        let (head, body) = (&input[..end], input.get(end + 1..).unwrap_or_default());
        let (how, authorization) = head.split_at(head.len().min(2));
        let port = usize::from(how.first().is_some_and(|b| b & 1 == 1));
        let by_id = how.get(1) == Some(&b's');
        let body = self.filled(body);
        // a header ends with its line
        let authorization: Vec<u8> =
            self.filled(authorization).into_iter().filter(|b| !matches!(b, b'\r' | b'\0')).collect();
        let path =
            if by_id { format!("/api/v1/nodes/{}/installation-status", self.a.id) } else { "/api/v1/report".into() };
        let mut request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n").into_bytes();
        if !authorization.starts_with(b"-") {
            request.extend([b"Authorization: ", &authorization[..], b"\r\n"].concat());
        }
        request.extend(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        request.extend(&body);
        let before = self.nodes();
        let Some(answer) = self.site.answer(port, &request)? else { return Ok("cut off".to_owned()) };
        let after = self.nodes();
        let (refused, told) = of_rest(&answer)?;
        if refused {
            return if before == after { Ok(told) } else { Err(format!("refused ({told}), and yet it has changed")) };
        }
        let told: Value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
        let said = Said::read(&authorization, &body, by_id.then_some(self.a.mac.as_str()));
        let verdict = self.judge(&said, told["applied"] == true, &before, &after)?;
        let (before_a, before_b) = (self.a.clone(), self.b.clone());
        self.replace(&before, &after);
        let tokens = [&before_a.token, &before_a.old, &before_b.token, &self.c.token];
        let token = said.token.as_ref().map(|token| tokens.iter().position(|known| *known == token));
        let facts = before.iter().zip(&after).any(|(before, after)| before.inventory != after.inventory);
        Ok(format!("{verdict} {} {} {token:?} {facts}", told["state"], told["reason"]))
    }

    fn judge(&self, said: &Said, applied: bool, before: &[BootNode; 3], after: &[BootNode; 3]) -> Verdict {
        for ((it, before), after) in [&self.a, &self.b, &self.c].into_iter().zip(before).zip(after) {
            bounded(after)?;
            if said.mac != it.mac {
                if before != after {
                    return Err(format!("a report of {} has changed {}", said.mac, it.mac));
                }
                continue;
            }
            let has_the_say = said.token.as_deref() == Some(it.token.as_str()) && it.mac != self.c.mac;
            if applied && !has_the_say {
                return Err(format!("counted with {:?}", said.token));
            }
            if !applied && frozen(before, has_the_say, after) != *before {
                return Err(format!("did not count, and yet moved: {before:?}\n{after:?}"));
            }
            if before.inventory != after.inventory {
                self.readable(after)?;
            }
        }
        if applied && ![&self.a.mac, &self.b.mac].contains(&&said.mac) {
            return Err(format!("counted for {}", said.mac));
        }
        Ok(if applied { "counted".to_owned() } else { "nothing".to_owned() })
    }

    fn readable(&self, node: &BootNode) -> Result<(), String> {
        let request = format!(
            "GET /api/v1/nodes/{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
            node.id, self.site.admin
        );
        match self.site.answer(0, request.as_bytes())? {
            Some(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("the node cannot be read any more: {other:?}")),
        }
    }

    /// One whose attempt has ended is no longer what it is called.
    fn replace(&mut self, before: &[BootNode; 3], after: &[BootNode; 3]) {
        let attempt = |node: &BootNode| node.open_order().map(|order| order.attempt);
        if attempt(&before[0]) != attempt(&after[0]) {
            self.a = self.site.installing();
        }
        if attempt(&before[1]) != attempt(&after[1]) {
            self.b = self.site.installing();
        }
    }
}

/// The node with what a report may always change put back: what is said of it, and its installer's lines.
fn frozen(before: &BootNode, lines: bool, after: &BootNode) -> BootNode {
    let mut node = BootNode {
        claims: before.claims.clone(),
        inventory: before.inventory.clone(),
        last_seen: before.last_seen,
        version: before.version,
        ..after.clone()
    };
    if let (true, Some(order), Some(was)) = (lines, &mut node.order, &before.order) {
        order.log_tail.clone_from(&was.log_tail);
        order.version = was.version;
    }
    node
}

fn bounded(node: &BootNode) -> Result<(), String> {
    let c = &node.claims;
    for claim in [&c.hostname, &c.ip_address, &c.vendor, &c.model, &c.serial_number, &c.system_uuid, &c.arch] {
        if claim.chars().count() > CLAIM_MAX || claim.chars().any(char::is_control) {
            return Err(format!("kept of what it said: {claim:?}"));
        }
    }
    let error = node.last_install_error.as_deref().unwrap_or_default();
    if error.len() > ERROR_MAX + "…".len() || error.chars().any(char::is_control) {
        return Err(format!("kept of its error: {error:?}"));
    }
    let tail = node.order.as_ref().map_or("", |order| order.log_tail.as_str());
    if tail.len() > TAIL_MAX || tail.chars().any(|c| c.is_control() && c != '\n') {
        return Err(format!("kept of its lines: {tail:?}"));
    }
    let evidence = node.order.as_ref().map_or(0, |order| order.evidence.len());
    if node.inventory.len().max(evidence) > DOCUMENT_MAX {
        return Err(format!("kept of its documents: {} bytes", node.inventory.len().max(evidence)));
    }
    Ok(())
}

/// A report by a reading of its own.
struct Said {
    mac: String,
    token: Option<String>,
}

impl Said {
    fn read(authorization: &[u8], body: &[u8], by_id: Option<&str>) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |name: &str| body[name].as_str().map(str::to_owned);
        let header = std::str::from_utf8(authorization).ok().and_then(|value| {
            let (scheme, token) = value.trim().split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
        });
        let digits: String =
            text("mac_address").unwrap_or_default().to_lowercase().chars().filter(char::is_ascii_hexdigit).collect();
        let pairs: Vec<&str> = (0..6).filter_map(|i| digits.get(2 * i..2 * i + 2)).collect();
        Self { mac: by_id.map_or_else(|| pairs.join(":"), str::to_owned), token: header.or_else(|| text("token")) }
    }
}

#[test]
fn boot_report() {
    Fuzz::new("boot_report", module_path!()).seeds(SEEDS.iter().map(|s| s.as_bytes())).words(WORDS).inputs(2_500).run(
        || {
            let mut plant = Plant::new();
            move |input| plant.reported(input)
        },
    );
}

// the token alone: nothing but what was made is one
#[test]
fn report_token() {
    let seeds = ["GOOD", "OLD", "OTHER", "DONE", "FORGED", "mwr_", "mwr_00000000000000000000000000000000.1.00", ""];
    let words = ["GOOD", "OLD", "OTHER", "mwr_", "mwt_", ".", "+1", "1", "2", "ord_", "4294967295", "0"];
    Fuzz::new("report_token", module_path!()).seeds(seeds).words(words).inputs(6_000).run(|| {
        let plant = Plant::new();
        move |input| {
            let Ok(token) = String::from_utf8(plant.filled(input)) else { return Ok("no text".to_owned()) };
            let service = &plant.site.service;
            let ordered = plant.site.runtime.block_on(service.ordered(&token)).map(|ordered| ordered.node.mac);
            // facts only, but with a token: it must be the machine's own, at whatever age
            let report = Report {
                mac: plant.a.mac.clone(),
                token: Some(domain::Secret::new(token.clone())),
                ..Report::default()
            };
            let reported = plant.site.runtime.block_on(service.report(report, &plant.site.setup));
            let invalid = |e: &Error| e.reason == Reason::ReportTokenInvalid;
            let known = [&plant.a, &plant.b].into_iter().find(|it| it.token == token);
            let ended = [&plant.a.old, &plant.b.old, &plant.c.old, &plant.c.token].contains(&&token);
            match (&ordered, known) {
                (Ok(mac), Some(it)) if mac.as_str() == it.mac => {}
                (Err(e), None) if ended && e.reason == Reason::IllegalTransition => {}
                (Err(e), None) if !ended && invalid(e) => {}
                other => return Err(format!("{token:?} is taken for {other:?}")),
            }
            let its_own = token == plant.a.token || token == plant.a.old;
            match reported {
                Ok(told) if its_own && !told.applied => Ok(format!("its own {}", told.reason)),
                Err(e) if !its_own && invalid(&e) => {
                    let (begun, parts) = (token.starts_with("mwr_"), token.matches('.').count().min(4));
                    Ok(format!("{begun} {parts} {}", token.len().min(120) / 4))
                }
                other => Err(format!("a report with {token:?}: {other:?}")),
            }
        }
    });
}
