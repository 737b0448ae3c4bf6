//! What labels say about a machine's pace and its commands' output, and the seeded dice behind both.

use domain::machine::Labels;
use domain::stage::{FailureClass, mix};
use provider::{ProviderError, ProviderResult};
use std::time::Duration;

pub(crate) const LATENCY_LABEL: &str = "sim.latency_ms";
pub(crate) const OUTPUT_LABEL: &str = "sim.output_bytes";
const LATENCY_DEFAULT_MAX_MS: u64 = 50;
const LATENCY_MAX_MS: u64 = 24 * 3600 * 1000;
pub(crate) const OUTPUT_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The latency the labels set; unset means that dice decide.
pub(crate) fn latency(labels: &Labels) -> ProviderResult<Option<Duration>> {
    let Some(text) = labels.get(LATENCY_LABEL) else { return Ok(None) };
    match text.parse::<u64>() {
        Ok(ms) if ms <= LATENCY_MAX_MS => Ok(Some(Duration::from_millis(ms))),
        Ok(_) | Err(_) => Err(invalid(LATENCY_LABEL, text, "use milliseconds, up to a day")),
    }
}

/// How much a command prints, if the labels say so.
pub(crate) fn output_bytes(labels: &Labels) -> ProviderResult<Option<u64>> {
    let Some(text) = labels.get(OUTPUT_LABEL) else { return Ok(None) };
    match text.parse::<u64>() {
        Ok(bytes) => Ok(Some(bytes.min(OUTPUT_MAX_BYTES))),
        Err(_) => Err(invalid(OUTPUT_LABEL, text, "use a number of bytes")),
    }
}

/// A latency from 0 to 50 ms that depends on nothing but its arguments.
pub(crate) fn drawn_latency(seed: u64, words: [&str; 3], count: u64) -> Duration {
    let mut hash = mix(seed ^ mix(count));
    for word in words {
        // the length keeps ("ab", "c") and ("a", "bc") apart
        hash = mix(hash ^ word.len() as u64);
        for byte in word.bytes() {
            hash = mix(hash ^ u64::from(byte));
        }
    }
    Duration::from_millis(hash % (LATENCY_DEFAULT_MAX_MS + 1))
}

pub(crate) fn invalid(label: &str, text: &str, hint: &str) -> ProviderError {
    ProviderError::refused(FailureClass::InvalidInput, format!("label {label}: {text:?} is not understood; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_repeat_by_seed_and_cover_the_range() {
        let draw = |seed, count| drawn_latency(seed, ["m", "e.s.1", "reboot"], count);
        assert_eq!(draw(1, 0), draw(1, 0));
        let drawn: std::collections::BTreeSet<Duration> = (0..2000).map(|count| draw(1, count)).collect();
        assert_eq!(drawn.len(), 51);
        assert_eq!(drawn.last(), Some(&Duration::from_millis(50)));
        assert!((0..20).any(|count| draw(1, count) != draw(2, count)));
        assert_ne!(drawn_latency(1, ["ab", "c", ""], 0), drawn_latency(1, ["a", "bc", ""], 0));
    }

    #[test]
    fn labels_are_read_and_bounded() {
        let labels = |key: &str, value: &str| Labels::from([(key.to_owned(), value.to_owned())]);
        assert_eq!(latency(&labels(LATENCY_LABEL, "7")), Ok(Some(Duration::from_millis(7))));
        assert_eq!(latency(&Labels::new()), Ok(None));
        assert_eq!(output_bytes(&labels(OUTPUT_LABEL, "99999999999")), Ok(Some(OUTPUT_MAX_BYTES)));
        for bad in ["", "-1", "x", "99999999999"] {
            let Err(ProviderError::Refused { class, message, .. }) = latency(&labels(LATENCY_LABEL, bad)) else {
                panic!("{bad:?} was taken")
            };
            assert_eq!(class, FailureClass::InvalidInput);
            assert!(message.contains(LATENCY_LABEL), "{message}");
        }
    }
}
