//! The tokens of installations. A MAC address is not a password: a boot script that serves an installer carries a token
//! that only this server can have made, for one boot node, one order and one attempt. Nothing is stored for it.

use crate::secret_keys::SecretKeys;
use domain::{BootNodeId, OrderId};

const PREFIX: &str = "mwr_";

/// What a token was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub node: BootNodeId,
    pub order: OrderId,
    pub number: u32,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn signed(attempt: &Attempt) -> Vec<u8> {
    format!("installation report\0{}\0{}\0{}", attempt.node, attempt.order, attempt.number).into_bytes()
}

/// `key` is the current one.
pub(crate) fn make(key: &crate::SecretKey, attempt: &Attempt) -> String {
    let order = attempt.order.as_str().trim_start_matches("ord_");
    format!("{PREFIX}{order}.{}.{}", attempt.number, hex(&key.veil(&signed(attempt))))
}

/// The order and the attempt that a token says it is for; whether that is so, [`is_good`] says.
pub(crate) fn read(token: &str) -> Option<(OrderId, u32)> {
    let mut parts = token.strip_prefix(PREFIX)?.splitn(3, '.');
    let order = parts.next().filter(|o| o.len() == 32 && o.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let number = parts.next()?.parse().ok()?;
    parts.next()?;
    Some((OrderId::from_text(format!("ord_{order}")), number))
}

/// Whether it was made for this, with a key that we still have.
pub(crate) fn is_good(keys: &SecretKeys, token: &str, attempt: &Attempt) -> bool {
    let mut known = keys.ids().into_iter().filter_map(|id| keys.known(&id));
    // each is compared whole, so that how long it takes tells nothing
    known.any(|key| same(make(&key, attempt).as_bytes(), token.as_bytes()))
}

fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SecretKey;

    fn attempt(node: &str, number: u32) -> Attempt {
        Attempt {
            node: BootNodeId::from_text(node),
            order: OrderId::from_text(format!("ord_{}", "a".repeat(32))),
            number,
        }
    }

    #[test]
    fn a_token_is_good_for_its_node_and_its_attempt_only() {
        let (key, _) = SecretKey::generate().expect("a key");
        let (other, _) = SecretKey::generate().expect("a key");
        let token = make(&key, &attempt("btn_1", 2));
        assert_eq!(read(&token), Some((OrderId::from_text(format!("ord_{}", "a".repeat(32))), 2)));
        let strange = make(&other, &attempt("btn_1", 2));
        let keys = SecretKeys::given(key);
        assert!(is_good(&keys, &token, &attempt("btn_1", 2)));
        assert!(!is_good(&keys, &token, &attempt("btn_2", 2)), "another machine's");
        assert!(!is_good(&keys, &token, &attempt("btn_1", 3)), "another attempt's");
        assert!(!is_good(&keys, &strange, &attempt("btn_1", 2)), "made by somebody else");
        let later = SecretKeys::given(other);
        assert!(!is_good(&later, &token, &attempt("btn_1", 2)), "the key is gone");
        for bad in ["", "mwr_", "mwr_x.1.2", &token[1..], &format!("{token}0"), &token[..token.len() - 1]] {
            let good = read(bad).is_some_and(|_| is_good(&keys, bad, &attempt("btn_1", 2)));
            assert!(!good, "{bad}");
        }
    }
}
