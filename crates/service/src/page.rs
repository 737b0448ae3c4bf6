//! Keyset paging: a token says after which key to go on, and for which question it was given.

use crate::{CredentialView, JobView, NodeView, RunView, SiteMachine, SiteView};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::boot_node::BootNode;
use domain::boot_workflow::BootWorkflow;
use domain::condition::ConditionType;
use domain::finding::Finding;
use domain::image::Image;
use domain::machine::Machine;
use domain::task::Task;
use domain::token::Token;
use domain::{Error, Reason, limits};
use sha2::{Digest, Sha256};
use store::audit::Entry;
use store::execution::Execution;

/// What a list call asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    pub filter: String,
    /// 0 means the default.
    pub page_size: i32,
    pub page_token: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Empty on the last page.
    pub next_page_token: String,
}

/// Roughly how large an item is on the wire.
pub(crate) trait Weigh {
    fn bytes(&self) -> usize;
}

/// What the fixed fields of an item may take.
const FIXED_BYTES: usize = 512;
/// What a condition takes beside its message.
const CONDITION_BYTES: usize = 96;

impl Weigh for Machine {
    fn bytes(&self) -> usize {
        let labels: usize = self.labels.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let s = &self.spec;
        let texts =
            s.ssh_endpoint.len() + s.bmc_endpoint.len() + s.location.len() + s.rack.len() + s.credentials_ref.len();
        let conditions: usize = self.conditions.iter().map(|c| c.message.len()).sum();
        let observed = self.observation.as_ref().map_or(0, |o| {
            let trouble = o.trouble.as_ref().map_or(0, |t| t.message.len());
            // told twice: in words, and by the condition that computes whether all agrees
            o.conditions.iter().map(|o| o.condition.message.len()).sum::<usize>() + 2 * (o.facts.len() + trouble)
        });
        let shown = CONDITION_BYTES * ConditionType::ALL.len() + conditions + observed;
        FIXED_BYTES + labels + texts + 20 * s.mac_addresses.len() + shown
    }
}

impl Weigh for RunView {
    fn bytes(&self) -> usize {
        let steps: usize = self.run.steps.iter().map(|s| s.name.len() + s.message.len() + 48).sum();
        let parameters: usize = self.run.parameters.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
        let states = self.why.len() + self.desired.len() + self.observed.len() + self.execution.len();
        FIXED_BYTES + steps + parameters + states + self.run.error.as_ref().map_or(0, |e| e.message.len())
    }
}

impl Weigh for Execution {
    fn bytes(&self) -> usize {
        FIXED_BYTES + self.waiting_for.len()
    }
}

impl Weigh for Token {
    fn bytes(&self) -> usize {
        FIXED_BYTES + self.customer_id.len()
    }
}

impl Weigh for CredentialView {
    fn bytes(&self) -> usize {
        FIXED_BYTES
    }
}

/// A number of one digit and its comma are eleven bytes in a message.
const DOCUMENT_GROWTH: usize = 6;

impl Weigh for BootNode {
    fn bytes(&self) -> usize {
        let error = self.last_install_error.as_ref().map_or(0, String::len);
        let order = self.order.as_ref();
        let evidence = order.map_or(0, |order| order.evidence.len());
        let order = order.map_or(0, |order| FIXED_BYTES + order.log_tail.len());
        FIXED_BYTES + error + order + DOCUMENT_GROWTH * (self.inventory.len() + evidence)
    }
}

impl Weigh for NodeView {
    fn bytes(&self) -> usize {
        let node = &self.node;
        2 * FIXED_BYTES + node.status_reason.len() + node.cordon_reason.len() + node.name.len()
    }
}

impl Weigh for JobView {
    fn bytes(&self) -> usize {
        let job = &self.job;
        let texts = job.observed.len() + job.reason.len() + job.failure.as_ref().map_or(0, |f| 2 * f.message.len());
        let stages: usize = job.done.iter().map(|d| d.message.len()).sum::<usize>() + 96 * job.stages().len();
        2 * FIXED_BYTES + texts + stages + DOCUMENT_GROWTH * (job.parameters.len() + job.clean_record.len())
    }
}

impl Weigh for Task {
    fn bytes(&self) -> usize {
        let result = self.result.as_ref().map_or(0, |r| r.message.len() + DOCUMENT_GROWTH * r.detail.len());
        2 * FIXED_BYTES + result + self.expired_because.len()
    }
}

impl Weigh for BootWorkflow {
    fn bytes(&self) -> usize {
        FIXED_BYTES + self.cmdline.len() + self.template.len()
    }
}

impl Weigh for Image {
    fn bytes(&self) -> usize {
        FIXED_BYTES
    }
}

impl Weigh for SiteView {
    fn bytes(&self) -> usize {
        let templates: usize = self.site.profiles.iter().map(|p| FIXED_BYTES + p.cloud_init.len()).sum();
        2 * FIXED_BYTES + self.site.ca_pem.len() + templates
    }
}

impl Weigh for SiteMachine {
    fn bytes(&self) -> usize {
        let told = &self.machine.told;
        let texts = |all: &[String]| all.iter().map(|text| text.len() + 2).sum::<usize>();
        2 * FIXED_BYTES + texts(&told.macs) + texts(&told.addresses) + texts(&told.tags)
    }
}

impl Weigh for Finding {
    fn bytes(&self) -> usize {
        FIXED_BYTES + self.message.len() + self.comment.len()
    }
}

impl Weigh for Entry {
    fn bytes(&self) -> usize {
        FIXED_BYTES + self.target.len() + self.message.len()
    }
}

const CHECK_BYTES: usize = 8;
const TOKEN_MAX: usize = 512;

fn bad_token() -> Error {
    Error::new(
        Reason::InvalidPageToken,
        "page_token: not a token of this list and filter; use next_page_token as it was given, with the same filter",
    )
    .with("field", "page_token")
}

impl PageRequest {
    pub(crate) fn size(&self) -> Result<usize, Error> {
        match usize::try_from(self.page_size) {
            Ok(0) => Ok(limits::PAGE_SIZE_DEFAULT),
            Ok(n) if n <= limits::PAGE_SIZE_MAX => Ok(n),
            Ok(_) | Err(_) => {
                Err(Error::field("page_size", format!("{} is outside 0 to {}", self.page_size, limits::PAGE_SIZE_MAX)))
            }
        }
    }

    /// The key to go on from; empty at the beginning.
    pub(crate) fn cursor(&self, list: &str) -> Result<String, Error> {
        if self.page_token.is_empty() {
            return Ok(String::new());
        }
        if self.page_token.len() > TOKEN_MAX {
            return Err(bad_token());
        }
        let bytes = URL_SAFE_NO_PAD.decode(&self.page_token).map_err(|_| bad_token())?;
        let (check, key) = bytes.split_at_checked(CHECK_BYTES).ok_or_else(bad_token)?;
        let key = std::str::from_utf8(key).ok().filter(|k| !k.chars().any(char::is_control)).ok_or_else(bad_token)?;
        if check == self.check(list, key) { Ok(key.to_owned()) } else { Err(bad_token()) }
    }

    /// The number to go on from, where the key is one; `None` at the beginning.
    pub(crate) fn number(&self, list: &str) -> Result<Option<u64>, Error> {
        match self.cursor(list)?.as_str() {
            "" => Ok(None),
            // anybody can make a token up: its check is no secret
            key => key.parse().map(Some).map_err(|_| bad_token()),
        }
    }

    /// Ties a token to its list and filter, and catches a damaged one. Not a secret.
    fn check(&self, list: &str, key: &str) -> [u8; CHECK_BYTES] {
        let mut hash = Sha256::new();
        for part in [list, &self.filter, key] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut check = [0; CHECK_BYTES];
        check.copy_from_slice(&hash.finalize()[..CHECK_BYTES]);
        check
    }

    /// A page out of up to one item more than asked for.
    pub(crate) fn page<T: Weigh>(
        &self,
        list: &str,
        mut items: Vec<T>,
        size: usize,
        key: impl Fn(&T) -> String,
    ) -> Page<T> {
        let mut bytes = 0;
        let fits = items.iter().take_while(|item| {
            bytes += item.bytes();
            bytes <= limits::PAGE_BYTES_MAX
        });
        let size = size.min(fits.count().max(1));
        let more = items.len() > size;
        items.truncate(size);
        let next_page_token = match items.last() {
            Some(last) if more => {
                let key = key(last);
                let mut bytes = self.check(list, &key).to_vec();
                bytes.extend(key.as_bytes());
                URL_SAFE_NO_PAD.encode(bytes)
            }
            Some(_) | None => String::new(),
        };
        Page { items, next_page_token }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Weigh for &str {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    #[test]
    fn a_page_ends_early_rather_than_grow_too_large() {
        let half = "x".repeat(limits::PAGE_BYTES_MAX / 2);
        let request = PageRequest::default();
        let page = request.page("machines", vec![half.as_str(); 5], 4, |s| s[..1].to_owned());
        assert_eq!(page.items.len(), 2);
        assert_ne!(page.next_page_token, "");
        let huge = "x".repeat(limits::PAGE_BYTES_MAX + 1);
        assert_eq!(
            request.page("machines", vec![huge.as_str(); 2], 4, |s| s[..1].to_owned()).items.len(),
            1,
            "never none"
        );
    }

    #[test]
    fn a_token_goes_on_where_it_was_given_and_nowhere_else() {
        let request = PageRequest { filter: "phase=READY".into(), ..PageRequest::default() };
        let page = request.page("machines", vec!["a", "b", "c"], 2, |s| (*s).to_owned());
        assert_eq!(page.items, ["a", "b"]);
        let next = PageRequest { page_token: page.next_page_token.clone(), ..request.clone() };
        assert_eq!(next.cursor("machines"), Ok("b".to_owned()));
        assert!(next.cursor("runs").is_err(), "another list");
        let other = PageRequest { filter: String::new(), ..next.clone() };
        assert!(other.cursor("machines").is_err(), "another filter");
        for bad in ["x", "!!!!", "AAAAAAAAAAAAAAAA", &"A".repeat(10_000)] {
            let r = PageRequest { page_token: bad.into(), ..request.clone() };
            assert_eq!(r.cursor("machines").map_err(|e| e.reason), Err(Reason::InvalidPageToken), "{bad}");
        }
        assert_eq!(request.page("machines", vec!["a"], 2, |s| (*s).to_owned()).next_page_token, "", "the last page");
    }

    #[test]
    fn a_token_that_was_made_up_is_refused_where_a_number_belongs() {
        let request = PageRequest::default();
        let number = |key: &str| {
            let page = request.page("audit", vec![key, key], 1, |s| (*s).to_owned());
            PageRequest { page_token: page.next_page_token, ..request.clone() }.number("audit").map_err(|e| e.reason)
        };
        assert_eq!((request.number("audit"), number("7")), (Ok(None), Ok(Some(7))));
        for bad in ["x", "-1", "99999999999999999999"] {
            assert_eq!(number(bad), Err(Reason::InvalidPageToken), "{bad}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        let size = |page_size| PageRequest { page_size, ..PageRequest::default() }.size();
        assert_eq!((size(0), size(1000)), (Ok(100), Ok(1000)));
        assert!(size(-1).is_err() && size(1001).is_err());
    }
}
