//! The parsers of the command line, in a form that the fuzzer can hold: what is private stays so. For tests only.

use super::contexts::Contexts;
use super::json::{Wire as _, descriptor};
use super::{plan_file, target, text, token, wait_for};
use proto::baremetal::v1::Plan;

/// Whether what was read is written and read again the same.
pub fn contexts(text: &str) -> Result<bool, (usize, String)> {
    let read = Contexts::parse(text)?;
    let written = toml::to_string(&read).map_err(|e| (1, e.to_string()))?;
    Ok(Contexts::parse(&written).is_ok_and(|again| again == read))
}

/// A plan, if it is the same after being printed; an inner error says that it is not.
pub fn plan(text: &str) -> Result<Result<Plan, String>, String> {
    let descriptor = descriptor(Plan::NAME).map_err(|e| e.to_string())?;
    let plan: Plan = plan_file::parse(text, &descriptor)?;
    let printed = super::json::shown(&plan).and_then(|shown| Ok((shown.pretty(0)?, shown.yaml()?)));
    let (json, yaml) = match printed {
        Ok(both) => both,
        Err(e) => return Ok(Err(format!("a plan that was read cannot be printed: {e}"))),
    };
    for form in [json, yaml] {
        match plan_file::parse::<Plan>(&form, &descriptor) {
            Ok(again) if again == plan => {}
            other => return Ok(Err(format!("is another after being printed: {other:?}\n{form}"))),
        }
    }
    Ok(Ok(plan))
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
