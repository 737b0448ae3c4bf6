//! Lenient reading of what controllers answer: what is absent, null or of another type is simply not told.
//! Places are JSON pointers.

use domain::hardware::Health;
use domain::limits;
use serde_json::Value;

/// Empty if it is not told. Numbers are read as text, too: serial numbers often are.
pub fn text(value: &Value, at: &str) -> String {
    match value.pointer(at) {
        Some(Value::String(text)) => limits::short(text.trim()),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Bool(flag)) => flag.to_string(),
        _ => String::new(),
    }
}

/// The first of them that is told.
pub fn first_text(value: &Value, places: &[&str]) -> String {
    places.iter().map(|at| text(value, at)).find(|text| !text.is_empty()).unwrap_or_default()
}

pub fn number(value: &Value, at: &str) -> Option<f64> {
    match value.pointer(at)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
    .filter(|number| number.is_finite())
}

/// A number of things; 0 if it is not told or is none.
pub fn count(value: &Value, at: &str) -> u64 {
    match value.pointer(at) {
        Some(Value::Number(number)) if number.is_u64() => number.as_u64().unwrap_or(0),
        _ => number(value, at).filter(|n| (0.0..1e15).contains(n)).map_or(0, |n| n.round() as u64),
    }
}

pub fn flag(value: &Value, at: &str) -> Option<bool> {
    match value.pointer(at)? {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) => text.trim().to_ascii_lowercase().parse().ok(),
        _ => None,
    }
}

pub fn list<'a>(value: &'a Value, at: &str) -> &'a [Value] {
    value.pointer(at).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub fn words(value: &Value, at: &str) -> Vec<String> {
    list(value, at).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Where the thing at this place lives: a path on the same controller.
pub fn link(value: &Value, at: &str) -> Option<String> {
    path_of(value.pointer(at)?)
}

pub fn links(value: &Value, at: &str) -> Vec<String> {
    list(value, at).iter().filter_map(path_of).collect()
}

fn path_of(value: &Value) -> Option<String> {
    let path = value.get("@odata.id")?.as_str()?;
    is_path(path).then(|| path.to_owned())
}

/// A path that can be asked for, and nothing that leads elsewhere.
pub fn is_path(path: &str) -> bool {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}');
    path.starts_with('/') && !path.starts_with("//") && path.len() <= limits::MESSAGE_MAX && path.chars().all(plain)
}

pub fn health(value: &Value) -> Option<Health> {
    // the second spelling is that of an emulator
    let word = first_text(value, &["/Status/HealthRollup", "/Status/HealthRollUp", "/Status/Health"]);
    if word.is_empty() {
        return None;
    }
    let known = Health::ALL.iter().copied().find(|h| h.as_str().eq_ignore_ascii_case(&word));
    Some(known.unwrap_or(Health::Unknown))
}

/// Something that is not there: the slot is listed, and empty.
pub fn is_absent(value: &Value) -> bool {
    text(value, "/Status/State").eq_ignore_ascii_case("Absent")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_told_is_empty() {
        let odd = json!({"Serial": 12, "Cores": "8", "Null": null, "On": "True", "Status": {"Health": "ok"}});
        assert_eq!((text(&odd, "/Serial"), count(&odd, "/Cores")), ("12".to_owned(), 8));
        assert_eq!(
            (text(&odd, "/Null"), number(&odd, "/Nowhere/At"), flag(&odd, "/On")),
            (String::new(), None, Some(true))
        );
        assert_eq!(health(&odd), Some(Health::Ok));
        assert_eq!(health(&json!({"Status": {"Health": "Burning"}})), Some(Health::Unknown));
        assert_eq!(health(&json!({})), None);
    }

    #[test]
    fn links_lead_nowhere_else() {
        let good = json!({"Systems": {"@odata.id": "/redfish/v1/Systems"}});
        assert_eq!(link(&good, "/Systems").as_deref(), Some("/redfish/v1/Systems"));
        for bad in ["http://elsewhere/x", "//elsewhere/x", "redfish", "/a b", "/a\r\nX: y", ""] {
            assert_eq!(link(&json!({"at": {"@odata.id": bad}}), "/at"), None, "{bad:?}");
        }
    }
}
