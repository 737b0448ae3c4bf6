//! What ipmitool's complaints mean. It answers every failure with status 1 and a sentence; which of our reasons it
//! is, and whether a command had been sent by then, is read off what it says.

use crate::tool::Said;
use domain::Reason;
use domain::stage::FailureClass;
use provider::{ProviderError, ProviderResult};

/// Completion codes of the IPMI specification, as numbers and as ipmitool spells them.
const CODES: [(u8, &str); 14] = [
    (0xc0, "Node busy"),
    (0xc1, "Invalid command"),
    (0xc2, "Invalid command on LUN"),
    (0xc3, "Timeout"),
    (0xc4, "Out of space"),
    (0xc7, "Request data length invalid"),
    (0xc9, "Parameter out of range"),
    (0xcb, "Requested sensor, data, or record not found"),
    (0xcc, "Invalid data field in request"),
    (0xce, "Command response could not be provided"),
    (0xd3, "Destination unavailable"),
    (0xd4, "Insufficient privilege level"),
    (0xd5, "Command not supported in present state"),
    (0xff, "Unspecified error"),
];

/// Who is talked to, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who<'a> {
    pub(crate) name: &'a str,
    pub(crate) credential: &'a str,
    pub(crate) cipher: u8,
}

/// How one raw command went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    NotSent,
    Done,
    Refused(u8),
    /// Sent, and no answer came.
    Silent,
}

/// How the last raw command of this kind went. With `-v` ipmitool says `RAW REQ` before it sends one.
pub(crate) fn outcome(said: &Said, netfn: u8, command: u8) -> Outcome {
    let this = format!("netfn=0x{netfn:x} lun=0x0 cmd=0x{command:x}");
    let is_this = |line: &str| line.split_once(&this).is_some_and(|(_, rest)| rest.starts_with([' ', ')']));
    let mut outcome = Outcome::NotSent;
    let mut waiting = false;
    for line in said.err.lines() {
        if line.starts_with("RAW REQ (") {
            waiting = is_this(line);
            outcome = if waiting { Outcome::Silent } else { outcome };
        } else if waiting && line.starts_with("RAW RSP (") {
            (outcome, waiting) = (Outcome::Done, false);
        } else if waiting && line.starts_with("Unable to send RAW command") && is_this(line) {
            (outcome, waiting) = (code_of(line).map_or(Outcome::Silent, Outcome::Refused), false);
        }
    }
    outcome
}

/// The completion code that a complaint ends with.
fn code_of(line: &str) -> Option<u8> {
    if let Some((_, rest)) = line.split_once("rsp=0x") {
        let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        return u8::from_str_radix(&digits, 16).ok();
    }
    let line = line.trim_end().trim_end_matches(')');
    CODES.iter().rev().find(|(_, text)| line.ends_with(text)).map(|(code, _)| *code)
}

/// Why no session came about, if that is what happened.
pub(crate) fn no_session(who: Who<'_>, said: &Said) -> Option<ProviderError> {
    let has = |texts: &[&str]| texts.iter().any(|text| said.err.contains(text));
    let no_session = ["Unable to establish IPMI v2 / RMCP+ session", "Unable to establish LAN session"];
    // with a reason behind it: without one, no answer came
    let level = |line: &str| line.starts_with("Set Session Privilege Level to") && line.contains("failed: ");
    if said.err.lines().any(level) {
        return Some(too_low(who));
    }
    if !has(&no_session) {
        return None;
    }
    let (name, cipher) = (who.name, who.cipher);
    Some(if has(&["HMAC is invalid", "unauthorized name", "unauthorized GUID", "invalid integrity check value"]) {
        ProviderError::login_refused(name, who.credential)
    } else if has(&["invalid role", "unauthorized role"]) {
        too_low(who)
    } else if has(&["invalid authentication algorithm", "invalid integrity algorithm", "invalid confidentiality"])
        || has(&["no matching authentication", "no matching integrity", "no matching cipher suite"])
    {
        let other = if cipher == 17 { 3 } else { 17 };
        ProviderError::capability_missing(
            name,
            &format!("cipher suite {cipher} (its endpoint may say ?cipher={other})"),
        )
    } else if has(&["insufficient resources"]) {
        ProviderError::transient(format!("{name} has no session free; it frees them by itself after a while"))
    } else {
        ProviderError::unreachable(name, "it answers, but no session could be set up with it")
    })
}

fn too_low(who: Who<'_>) -> ProviderError {
    let message = format!(
        "{} lets the login of credential {:?} in but does not let it do this; give that account the privilege level ADMINISTRATOR there",
        who.name, who.credential
    );
    ProviderError::because(Reason::LoginRefused, FailureClass::NeedsOperator, message)
}

/// A command that was refused with this code.
pub(crate) fn by_code(who: Who<'_>, doing: &str, code: u8) -> ProviderError {
    let name = who.name;
    let text = CODES.iter().find(|(known, _)| *known == code).map_or("a code of its maker's", |(_, text)| *text);
    let because = format!("{name} refused {doing}: {text} (0x{code:02x})");
    match code {
        0xc0 | 0xc4 | 0xce | 0xd2 => ProviderError::transient(format!("{because}; it is busy")),
        0xc1 | 0xc2 | 0xc7 | 0xc9 | 0xcc => {
            ProviderError::capability_missing(name, &format!("{doing} ({text}, 0x{code:02x})"))
        }
        // it has asked in turn, and heard nothing: what it was told may yet happen
        0xc3 => ProviderError::unknown(because),
        0xd4 => too_low(who),
        0xd5 => ProviderError::refused(FailureClass::Conflict, because),
        _ => ProviderError::transient(because),
    }
}

/// A change, as it went. `Ok` only where the controller said yes.
pub(crate) fn change(who: Who<'_>, doing: &str, said: &Said, netfn: u8, command: u8) -> ProviderResult<()> {
    match outcome(said, netfn, command) {
        Outcome::Done => Ok(()),
        Outcome::Refused(code) => Err(by_code(who, doing, code)),
        Outcome::Silent => Err(ProviderError::unknown(format!("{} was told {doing}", who.name))),
        Outcome::NotSent => Err(no_session(who, said).unwrap_or_else(|| {
            ProviderError::transient(format!("{doing} was not sent to {}: ipmitool ended before", who.name))
        })),
    }
}

/// A read that brought nothing: the complaint about it, else that it cannot be understood.
pub(crate) fn reading(who: Who<'_>, doing: &str, said: &Said) -> ProviderError {
    // what ipmitool asks for its own sake may be refused without harm
    let noise = |line: &&str| {
        ["Invalid completion code received", "Get HPM.x", "Running Get", "Discovered IPMB"]
            .iter()
            .any(|n| line.starts_with(n))
    };
    let complaints = || said.err.lines().chain(said.out.lines()).filter(|line| !noise(line));
    no_session(who, said).unwrap_or_else(|| match complaints().find_map(code_of) {
        Some(0xc3) => ProviderError::transient(format!("{} did not manage {doing} in time", who.name)),
        Some(code) => by_code(who, doing, code),
        None => ProviderError::bad_answer(who.name, &format!("{doing} brought nothing that can be read")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Who<'_> = Who { name: "the BMC", credential: "rack-1", cipher: 17 };
    const NO_SESSION: &str = "Error: Unable to establish IPMI v2 / RMCP+ session\n";

    fn said(err: &str) -> Said {
        Said { err: err.to_owned(), ..Said::default() }
    }

    /// In the words of ipmitool 1.8.19: recorded against ipmi_sim 2.0.33, but for the role and the resources, which
    /// it never refuses for.
    #[test]
    fn each_refused_session_has_its_reason() {
        for (err, reason) in [
            ("> RAKP 2 HMAC is invalid\n", Reason::LoginRefused),
            ("RAKP 2 message indicates an error : unauthorized name\n", Reason::LoginRefused),
            ("RAKP 2 message indicates an error : unauthorized role requested\n", Reason::LoginRefused),
            (
                "Error in open session response message : invalid authentication algorithm\n\n",
                Reason::CapabilityMissing,
            ),
            ("Error in open session response message : insufficient resources for session\n", Reason::ProviderRefused),
            (
                "Get Auth Capabilities error\nError issuing Get Channel Authentication Capabilities request\n",
                Reason::Unreachable,
            ),
        ] {
            let error =
                no_session(WHO, &said(&format!("Loading IANA PEN Registry...\n{err}{NO_SESSION}"))).expect("one");
            assert_eq!(error.reason(), reason, "{err}: {error}");
        }
        let noise =
            "Set Session Privilege Level to ADMINISTRATOR\nGet HPM.x Capabilities request failed, compcode = d4\n";
        assert_eq!(no_session(WHO, &said(noise)), None);
        let level =
            said("Set Session Privilege Level to ADMINISTRATOR failed: Requested privilege level exceeds limit\n");
        assert_eq!(no_session(WHO, &level), Some(too_low(WHO)));
        let wrong = no_session(WHO, &said(&format!("> RAKP 2 HMAC is invalid\n{NO_SESSION}"))).expect("one");
        let low = no_session(WHO, &said(&format!("unauthorized role requested\n{NO_SESSION}")));
        assert_ne!(Some(wrong), low, "a wrong password and too low a privilege are told apart");
    }

    #[test]
    fn how_a_raw_command_went() {
        let request = "RAW REQ (channel=0x0 netfn=0x0 lun=0x0 cmd=0x2 data_len=1)\n";
        let refused = "Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x2 rsp=0xc1): Invalid command\n";
        let silent = "Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x2)\n";
        let other = "RAW REQ (channel=0x0 netfn=0x0 lun=0x0 cmd=0x22 data_len=1)\nRAW RSP (0 bytes)\n";
        for (err, expected) in [
            (format!("{other}{request}RAW RSP (0 bytes)\n"), Outcome::Done),
            (format!("{request}{refused}{other}"), Outcome::Refused(0xc1)),
            (format!("{request}{silent}"), Outcome::Silent),
            (request.to_owned(), Outcome::Silent),
            (other.to_owned(), Outcome::NotSent),
            (format!("{request}{refused}{request}RAW RSP (0 bytes)\n"), Outcome::Done),
        ] {
            assert_eq!(outcome(&said(&err), 0, 2), expected, "{err}");
        }
    }

    #[test]
    fn each_completion_code_has_its_reason() {
        for (code, reason) in [
            (0xc0, Reason::ProviderRefused),
            (0xc1, Reason::CapabilityMissing),
            (0xc3, Reason::ProviderSilent),
            (0xcc, Reason::CapabilityMissing),
            (0xd4, Reason::LoginRefused),
            (0xd5, Reason::ProviderRefused),
            (0xff, Reason::ProviderRefused),
            (0x80, Reason::ProviderRefused),
        ] {
            assert_eq!(by_code(WHO, "power on", code).reason(), reason, "{code:x}");
        }
        let read = |err: &str| reading(WHO, "its chassis status", &said(err)).reason();
        assert_eq!(read("Error sending Chassis Status command: Insufficient privilege level\n"), Reason::LoginRefused);
        assert_eq!(read("Get Chassis Restart Cause failed: Invalid command\n"), Reason::CapabilityMissing);
        assert_eq!(read("Invalid completion code received: Invalid command\n"), Reason::BadAnswer, "only noise");
        assert_eq!(read(""), Reason::BadAnswer);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(err in "(RAW REQ \\(|Unable to send RAW command|netfn=0x0 lun=0x0 cmd=0x2|rsp=0x|[ -~é\n)]{0,4}){0,20}") {
            let said = Said { out: err.clone(), err, success: false };
            outcome(&said, 0, 2);
            no_session(WHO, &said);
            reading(WHO, "a read", &said);
        }
    }
}
