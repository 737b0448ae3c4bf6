//! The parsers of the command line, in a form that the fuzzer can hold: what is private stays so. For tests only.

use super::contexts::Contexts;
use super::json::{Wire, descriptor};
use super::{plan_file, target, text, token, wait_for, workflow};
use proto::baremetal::v1::Plan;

/// Whether what was read is written and read again the same.
pub fn contexts(text: &str) -> Result<bool, (usize, String)> {
    let read = Contexts::parse(text)?;
    let written = toml::to_string(&read).map_err(|e| (1, e.to_string()))?;
    Ok(Contexts::parse(&written).is_ok_and(|again| again == read))
}

/// A plan, if it is the same after being printed; an inner error says that it is not.
pub fn plan(text: &str) -> Result<Result<Plan, String>, String> {
    document(text)
}

/// A workflow in the same way, and whether it is sound.
pub fn workflow(text: &str) -> Result<Result<Result<(), String>, String>, String> {
    Ok(document(text)?.map(|read| workflow::checked(&read).map_err(|e| e.message)))
}

fn document<T: Wire + Default + PartialEq + std::fmt::Debug>(text: &str) -> Result<Result<T, String>, String> {
    let descriptor = descriptor(T::NAME).map_err(|e| e.to_string())?;
    let read: T = plan_file::parse(text, &descriptor)?;
    let printed = super::json::shown(&read).and_then(|shown| Ok((shown.pretty(0)?, shown.yaml()?)));
    let (json, yaml) = match printed {
        Ok(both) => both,
        Err(e) => return Ok(Err(format!("what was read cannot be printed: {e}"))),
    };
    for form in [json, yaml] {
        match plan_file::parse::<T>(&form, &descriptor) {
            Ok(again) if again == read => {}
            other => return Ok(Err(format!("is another after being printed: {other:?}\n{form}"))),
        }
    }
    Ok(Ok(read))
}

/// What each parser makes of one word.
pub fn words(word: &str) -> Vec<(&'static str, Result<(), String>)> {
    vec![
        ("duration", text::parse_duration(word).map(drop)),
        ("pair", text::parse_pair(word).map(drop)),
        ("goal", wait_for::parse(word).map(drop)),
        ("address", target::address(word).map(drop)),
        ("ttl", token::parse_ttl(word).map(drop)),
        ("customer", token::parse_customer(word).map(drop)),
        ("level", crate::logging::filter(word).map(drop)),
    ]
}
