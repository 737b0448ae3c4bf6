//! What a status means. Post-commit work decides some of MAAS's codes, so a 5xx to a change says nothing of what was done;
//! and a 409 or 404 is only taken for what it is when MAAS's own words are in it.

use crate::client::{Call, Client};
use crate::said;
use crate::wire::Answer;
use domain::Reason;
use domain::stage::FailureClass;
use http::header::RETRY_AFTER;
use provider::ProviderError;

pub enum Judged {
    There,
    NotThere,
    No(ProviderError),
}

impl Client {
    pub fn judge(&self, call: &Call, answer: &Answer) -> Judged {
        let status = answer.status;
        let no = match status {
            200..=299 => return Judged::There,
            401 => self.login(call, &answer.no),
            403 => self.forbidden(call, answer),
            // of MAAS's own making; any other web server's says nothing about machines
            404 if has(&answer.no, "matches the given query") => return Judged::NotThere,
            404 | 405 | 410 | 300..=399 => self.elsewhere(call, answer),
            400 => self.invalid(call, answer),
            409 if answer.headers.contains_key(RETRY_AFTER) => {
                self.says(call, answer, FailureClass::Transient, Reason::ProviderRefused, "it is busy; try again")
            }
            409 => self.wrong_state(call, answer),
            408 | 425 | 429 => {
                self.says(call, answer, FailureClass::Transient, Reason::ProviderRefused, "it is busy; try again")
            }
            500.. if call.is_change() => {
                let message = format!("{} failed at {}{}", self.name, call.doing, self.quote(call, answer));
                ProviderError::unknown(message)
            }
            500.. => self.failed(call, answer),
            _ => self.says(
                call,
                answer,
                FailureClass::InvalidInput,
                Reason::ProviderRefused,
                "what was asked is not taken",
            ),
        };
        Judged::No(no)
    }

    /// `: what it says (HTTP status 409)`.
    fn quote(&self, call: &Call, answer: &Answer) -> String {
        let said = self.blot(call, &said::no(&answer.no));
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        format!("{said} (HTTP status {})", answer.status)
    }

    fn says(&self, call: &Call, answer: &Answer, class: FailureClass, reason: Reason, next: &str) -> ProviderError {
        let message = format!("{} refuses {}{}; {next}", self.name, call.doing, self.quote(call, answer));
        ProviderError::because(reason, class, message)
    }

    /// What stands in such an answer is never repeated: it may hold the right secret.
    fn login(&self, call: &Call, body: &[u8]) -> ProviderError {
        let (what, next) = if has(body, "Expired timestamp") {
            ("its clock and ours are more than five minutes apart", "set both by NTP")
        } else if has(body, "Nonce already used") {
            let message =
                format!("{} refuses {}: it has seen this very request before; try again", self.name, call.doing);
            return ProviderError::because(Reason::LoginRefused, FailureClass::Transient, message);
        } else {
            (
                "it does not take the API key of the site",
                "make a new one in MAAS (the user's preferences, API keys) and store it with 'millwright credential set NAME --kind maas'",
            )
        };
        let message = format!("{} refuses {}: {what}; {next}", self.name, call.doing);
        ProviderError::because(Reason::LoginRefused, FailureClass::NeedsOperator, message)
    }

    fn forbidden(&self, call: &Call, answer: &Answer) -> ProviderError {
        let next = "the user of the API key may not do that: it must be an administrator of that MAAS, or own the machine; \
                    and a locked machine must be unlocked first";
        self.says(call, answer, FailureClass::NeedsOperator, Reason::PermissionMissing, next)
    }

    fn wrong_state(&self, call: &Call, answer: &Answer) -> ProviderError {
        let next = "look at the machine's state there before anything else";
        self.says(call, answer, FailureClass::Conflict, Reason::WrongState, next)
    }

    fn invalid(&self, call: &Call, answer: &Answer) -> ProviderError {
        let no = &answer.no;
        if has(no, "Unrecognised signature") {
            if call.query.iter().any(|(name, _)| *name == "op") {
                let what = format!("{} (HTTP status 400: its API does not know the call)", call.doing);
                let message = format!("{} does not offer {what}; MAAS 3.5 or newer is needed", self.name);
                return ProviderError::because(Reason::CapabilityMissing, FailureClass::InvalidInput, message);
            }
            let message = format!(
                "{} refuses {}: our login does not reach it; see that no proxy in between takes the Authorization header away",
                self.name, call.doing
            );
            return ProviderError::because(Reason::LoginRefused, FailureClass::NeedsOperator, message);
        }
        if said::complains(no, "__all__", "current state of the node") {
            return self.wrong_state(call, answer);
        }
        if said::complains(no, "mac_addresses", "already in use") {
            let next = "find the machine that has it, and take that one";
            return self.says(call, answer, FailureClass::Conflict, Reason::IdentityTaken, next);
        }
        let next = "correct what it names in the site's profile or in the record";
        self.says(call, answer, FailureClass::InvalidInput, Reason::ProviderRefused, next)
    }

    fn failed(&self, call: &Call, answer: &Answer) -> ProviderError {
        let class = match answer.status {
            502..=504 if !call.slow => FailureClass::DependencyDown,
            _ => FailureClass::Transient,
        };
        let message = format!("{} failed at {}{}", self.name, call.doing, self.quote(call, answer));
        ProviderError::refused(class, message)
    }

    /// Not an API 2.0.
    fn elsewhere(&self, call: &Call, answer: &Answer) -> ProviderError {
        let message = format!(
            "{} answers {} with HTTP status {}{}: that is no MAAS API 2.0; the site's url must lead to it, up to and with \
             /MAAS, and nothing in between may redirect",
            self.name,
            call.doing,
            answer.status,
            match self.blot(call, &said::no(&answer.no)) {
                said if said.is_empty() => String::new(),
                said => format!(" ({said})"),
            }
        );
        ProviderError::because(Reason::BadAnswer, FailureClass::NeedsOperator, message)
    }

    /// What was to be changed is not there.
    pub fn gone(&self, call: &Call) -> ProviderError {
        let message = format!(
            "{} refuses {}: it has no such thing (any more); look at what there is before anything else",
            self.name, call.doing
        );
        ProviderError::because(Reason::WrongState, FailureClass::Conflict, message)
    }
}

fn has(body: &[u8], words: &str) -> bool {
    String::from_utf8_lossy(body).contains(words)
}
