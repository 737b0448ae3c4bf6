//! Messages to JSON (or any other serde format), straight from the dynamic message: no tree in between.

use super::{is_choice, is_well_known};
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use prost_reflect::{DynamicMessage, Kind, MapKey, ReflectMessage as _, SerializeOptions, Value};
use prost_types::Timestamp;
use serde::ser::{Error as _, Serialize, SerializeMap as _, Serializer};

/// A message that serializes by our rules.
pub struct Json<'a>(pub &'a DynamicMessage);

/// The years 1 to 9999, which is what RFC 3339 can say.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
/// Up to here every whole number is exact in a double.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let descriptor = self.0.descriptor();
        if is_well_known(&descriptor) {
            return well_known(self.0, descriptor.full_name(), serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        for field in descriptor.fields() {
            if field.supports_presence() && !self.0.has_field(&field) {
                // of a choice only what was chosen is shown
                if !is_choice(&field) {
                    map.serialize_entry(field.name(), &())?;
                }
                continue;
            }
            map.serialize_entry(field.name(), &Shown(&self.0.get_field(&field), &field.kind()))?;
        }
        map.end()
    }
}

fn well_known<S: Serializer>(m: &DynamicMessage, name: &str, serializer: S) -> Result<S::Ok, S::Error> {
    match name {
        "google.protobuf.Timestamp" => timestamp(m, serializer),
        "google.protobuf.Value" => free(m, serializer),
        "google.protobuf.Struct" | "google.protobuf.ListValue" => match m.get_field_by_number(1).as_deref() {
            Some(Value::Map(entries)) => {
                serializer.collect_map(sorted(entries).into_iter().map(|(k, v)| (Key(k), Free(v))))
            }
            Some(Value::List(items)) => serializer.collect_seq(items.iter().map(Free)),
            _ => serializer.serialize_unit(),
        },
        // as it stands: a label's name is not a field's, and must not be spelt otherwise
        "google.protobuf.FieldMask" => {
            let paths = m.get_field_by_number(1);
            let paths = paths.as_deref().and_then(Value::as_list).unwrap_or_default();
            let paths: Vec<&str> = paths.iter().filter_map(Value::as_str).collect();
            serializer.serialize_str(&paths.join(","))
        }
        _ => m.serialize_with_options(serializer, &SerializeOptions::new().use_proto_field_name(true)),
    }
}

fn timestamp<S: Serializer>(m: &DynamicMessage, serializer: S) -> Result<S::Ok, S::Error> {
    let seconds = m.get_field_by_number(1).and_then(|v| v.as_i64()).unwrap_or_default();
    let nanos = m.get_field_by_number(2).and_then(|v| v.as_i32()).unwrap_or_default();
    if !SECONDS.contains(&seconds) || !(0..1_000_000_000).contains(&nanos) {
        return Err(S::Error::custom(format!("{seconds} s and {nanos} ns are no time")));
    }
    serializer.collect_str(&Timestamp { seconds, nanos })
}

/// A `google.protobuf.Value`: whatever JSON can say.
fn free<S: Serializer>(m: &DynamicMessage, serializer: S) -> Result<S::Ok, S::Error> {
    match m.fields().next() {
        Some((_, Value::F64(n))) => number(*n, serializer),
        Some((_, Value::String(text))) => serializer.serialize_str(text),
        Some((_, Value::Bool(b))) => serializer.serialize_bool(*b),
        Some((_, Value::Message(inner))) => Json(inner).serialize(serializer),
        _ => serializer.serialize_unit(),
    }
}

/// An element of free JSON.
struct Free<'a>(&'a Value);

impl Serialize for Free<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Message(m) => Json(m).serialize(serializer),
            _ => serializer.serialize_unit(),
        }
    }
}

/// Whole numbers stay whole.
fn number<S: Serializer>(n: f64, serializer: S) -> Result<S::Ok, S::Error> {
    if n.fract() == 0.0 && n.abs() <= EXACT_MAX {
        serializer.serialize_i64(n as i64)
    } else if n.is_finite() {
        serializer.serialize_f64(n)
    } else if n.is_nan() {
        serializer.serialize_str("NaN")
    } else {
        serializer.serialize_str(if n > 0.0 { "Infinity" } else { "-Infinity" })
    }
}

/// A value with the kind of its field, which knows the names of enums.
struct Shown<'a>(&'a Value, &'a Kind);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Shown(value, kind) = *self;
        match value {
            Value::Bool(b) => serializer.serialize_bool(*b),
            Value::I32(n) => serializer.serialize_i32(*n),
            Value::U32(n) => serializer.serialize_u32(*n),
            Value::I64(n) => serializer.collect_str(n),
            Value::U64(n) => serializer.collect_str(n),
            // by its shortest text: 0.1 stays 0.1
            Value::F32(n) => number(n.to_string().parse().unwrap_or(f64::from(*n)), serializer),
            Value::F64(n) => number(*n, serializer),
            Value::String(text) => serializer.serialize_str(text),
            Value::Bytes(bytes) => serializer.collect_str(&Base64Display::new(bytes, &STANDARD)),
            Value::EnumNumber(n) => match kind.as_enum().and_then(|e| e.get_value(*n)) {
                Some(named) => serializer.serialize_str(named.name()),
                None => serializer.serialize_i32(*n),
            },
            Value::Message(m) => Json(m).serialize(serializer),
            Value::List(items) => serializer.collect_seq(items.iter().map(|item| Shown(item, kind))),
            Value::Map(entries) => {
                let Some(entry) = kind.as_message() else { return Err(S::Error::custom("a map without an entry")) };
                let kind = entry.map_entry_value_field().kind();
                serializer.collect_map(sorted(entries).into_iter().map(|(k, v)| (Key(k), Shown(v, &kind))))
            }
        }
    }
}

fn sorted(entries: &std::collections::HashMap<MapKey, Value>) -> Vec<(&MapKey, &Value)> {
    let mut entries: Vec<(&MapKey, &Value)> = entries.iter().collect();
    entries.sort_by(|a, b| a.0.cmp(b.0));
    entries
}

/// Keys of objects are texts.
struct Key<'a>(&'a MapKey);

impl Serialize for Key<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            MapKey::Bool(key) => serializer.collect_str(key),
            MapKey::I32(key) => serializer.collect_str(key),
            MapKey::I64(key) => serializer.collect_str(key),
            MapKey::U32(key) => serializer.collect_str(key),
            MapKey::U64(key) => serializer.collect_str(key),
            MapKey::String(key) => serializer.serialize_str(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, descriptor, read};
    use super::*;
    use prost::Message;
    use proto::baremetal::v1 as pb;
    use proto::millwright::v1 as mw;
    use serde_json::json;

    fn shown<M: Message>(name: &str, message: &M) -> String {
        let dynamic = decode(descriptor(name).expect("known"), &message.encode_to_vec()).expect("decodes");
        serde_json::to_string(&Json(&dynamic)).expect("JSON")
    }

    #[test]
    fn every_field_is_present_in_the_order_of_numbers() {
        let labels = [("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())].into();
        let machine = pb::Machine { machine_id: "m-1".into(), labels, version: u64::MAX, ..Default::default() };
        let expected = r#"{"machine_id":"m-1","labels":{"a":"1","b":"2"},"spec":null,"status":null,"version":"18446744073709551615"}"#;
        assert_eq!(shown("baremetal.v1.Machine", &machine), expected);
    }

    #[test]
    fn of_a_choice_only_what_was_chosen_is_shown() {
        let kind = Some(pb::step::Kind::Reboot(pb::Reboot { mode: String::new() }));
        let step = pb::Step { name: "boot".into(), timeout_seconds: Some(0), max_retries: None, kind };
        let expected = r#"{"name":"boot","timeout_seconds":0,"max_retries":null,"reboot":{"mode":""}}"#;
        assert_eq!(shown("baremetal.v1.Step", &step), expected);
        let step = pb::Step { kind: None, ..step };
        let expected = r#"{"name":"boot","timeout_seconds":0,"max_retries":null}"#;
        assert_eq!(shown("baremetal.v1.Step", &step), expected);
    }

    #[test]
    fn bytes_are_base64_and_times_are_rfc_3339() {
        let ts = Some(Timestamp { seconds: 1_769_699_400, nanos: 120_000_000 });
        let chunk = pb::LogChunk { ts, data: vec![0xff, 0xfe, 0x00], sequence: 7, ..Default::default() };
        let expected =
            r#"{"ts":"2026-01-29T15:10:00.120Z","run_id":"","stream":"","data":"//4A","sequence":"7","step":""}"#;
        assert_eq!(shown("baremetal.v1.LogChunk", &chunk), expected);
    }

    #[test]
    fn enums_stand_by_name_and_unknown_ones_by_number() {
        let status = |phase| pb::MachineStatus { phase, ..Default::default() };
        assert!(shown("baremetal.v1.MachineStatus", &status(4)).starts_with(r#"{"phase":"IN_SERVICE","#));
        assert!(shown("baremetal.v1.MachineStatus", &status(99)).starts_with(r#"{"phase":99,"#));
    }

    #[test]
    fn whole_numbers_in_free_json_stay_whole() {
        let free = json!({"z": 5, "a": [1, 2.5, -0.0, 1e300, true, null, "x"], "m": {"b": {}, "a": []}});
        let event = read(&descriptor("millwright.v1.Event").expect("known"), json!({"metadata": free})).expect("reads");
        let text = serde_json::to_string(&Json(&event)).expect("JSON");
        let expected = r#""metadata":{"a":[1,2.5,0,1e+300,true,null,"x"],"m":{"a":[],"b":{}},"z":5}}"#;
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn an_absent_struct_and_time_are_null() {
        let text = shown("millwright.v1.Event", &mw::Event { sequence: 1, ..Default::default() });
        assert!(text.starts_with(r#"{"sequence":"1","at":null,"#) && text.ends_with(r#""metadata":null}"#), "{text}");
    }

    #[test]
    fn a_time_that_is_none_is_an_error_and_no_panic() {
        let ts = Some(Timestamp { seconds: i64::MAX, nanos: -1 });
        let bytes = pb::LogChunk { ts, ..Default::default() }.encode_to_vec();
        let chunk = decode(descriptor("baremetal.v1.LogChunk").expect("known"), &bytes).expect("decodes");
        assert!(serde_json::to_string(&Json(&chunk)).is_err());
    }
}
