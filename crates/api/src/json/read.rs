//! JSON to messages. Whatever does not fit is told with its path, what was expected there and what was
//! found; `null` is absent; numbers may come as texts, and enums as names or numbers.

use super::{is_choice, is_well_known};
use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use domain::Error;
use prost_reflect::{
    Cardinality, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::fmt;

/// Where in the body we are; written out only when something is wrong there.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    Root,
    Field(&'a At<'a>, &'a str),
    Item(&'a At<'a>, usize),
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Root => f.write_str("body"),
            At::Field(At::Root, name) => f.write_str(name),
            At::Field(outer, name) => write!(f, "{outer}.{name}"),
            At::Item(outer, index) => write!(f, "{outer}[{index}]"),
        }
    }
}

impl At<'_> {
    fn wrong(&self, problem: impl fmt::Display) -> Error {
        Error::field(&self.to_string(), problem)
    }

    fn expected(&self, what: impl fmt::Display, found: &Json) -> Error {
        if self.is_secret() {
            return self.wrong(format!("expected {what}, found something else"));
        }
        self.wrong(format!("expected {what}, found {}", Found(found)))
    }

    /// Whether what stands here must not be sent back, nor into the audit.
    fn is_secret(&self) -> bool {
        match self {
            At::Root => false,
            At::Field(outer, name) => is_secret(name) || outer.is_secret(),
            At::Item(outer, _) => outer.is_secret(),
        }
    }
}

/// Also as somebody misspelt it: `privateKey`, `Password`.
fn is_secret(name: &str) -> bool {
    let plain = |name: &str| name.replace(['_', '-'], "").to_ascii_lowercase();
    proto::SECRET_FIELDS.iter().any(|secret| plain(secret) == plain(name))
}

/// What was sent instead, short enough to be sent back.
struct Found<'a>(&'a Json);

const FOUND_MAX: usize = 60;

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Json::Array(_) => f.write_str("a list"),
            Json::Object(_) => f.write_str("an object"),
            Json::String(text) if text.chars().count() > FOUND_MAX => {
                write!(f, "{:?}…", text.chars().take(FOUND_MAX).collect::<String>())
            }
            Json::String(text) => write!(f, "{text:?}"),
            plain => write!(f, "{plain}"),
        }
    }
}

/// Reads a message.
pub fn read(descriptor: &MessageDescriptor, value: Json) -> Result<DynamicMessage, Error> {
    message(descriptor, value, &At::Root)
}

fn message(descriptor: &MessageDescriptor, value: Json, at: &At<'_>) -> Result<DynamicMessage, Error> {
    if is_well_known(descriptor) {
        return well_known(descriptor, value, at);
    }
    let Json::Object(object) = value else { return Err(at.expected("an object", &value)) };
    let mut read = DynamicMessage::new(descriptor.clone());
    let mut seen: Vec<FieldDescriptor> = Vec::with_capacity(object.len());
    for (key, value) in object {
        let here = At::Field(at, &key);
        let Some(field) = field_named(descriptor, &key) else {
            let known: Vec<String> = descriptor.fields().map(|f| f.name().to_owned()).collect();
            return Err(here.wrong(format!("unknown field; known are: {}", known.join(", "))).allowing(known));
        };
        if seen.contains(&field) {
            return Err(here.wrong(format!("stands twice, also as {}", field.name())));
        }
        // null is absent, save where it is a value like others
        if value.is_null() && !matches!(field.kind(), Kind::Message(m) if m.full_name() == "google.protobuf.Value") {
            seen.push(field);
            continue;
        }
        if is_choice(&field)
            && let Some(other) = seen.iter().find(|s| s.containing_oneof() == field.containing_oneof())
            && read.has_field(other)
        {
            let both = format!("has both {} and {key}, at most one is possible", other.name());
            return Err(at.wrong(both));
        }
        let value = content(&field, value, &here)?;
        read.try_set_field(&field, value).map_err(|e| Error::internal(format!("{here}: {e}")))?;
        seen.push(field);
    }
    Ok(read)
}

/// A field by its proto name or, as proto's JSON demands, in lowerCamelCase.
pub(crate) fn field_named(descriptor: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    descriptor.get_field_by_name(name).or_else(|| descriptor.get_field_by_json_name(name))
}

fn content(field: &FieldDescriptor, value: Json, at: &At<'_>) -> Result<Value, Error> {
    if field.is_map() {
        return map(&field.kind(), value, at);
    }
    if field.cardinality() != Cardinality::Repeated {
        return single(&field.kind(), value, at);
    }
    let Json::Array(items) = value else { return Err(at.expected("a list", &value)) };
    let kind = field.kind();
    let items = items.into_iter().enumerate().map(|(i, item)| single(&kind, item, &At::Item(at, i)));
    Ok(Value::List(items.collect::<Result<_, _>>()?))
}

fn map(kind: &Kind, value: Json, at: &At<'_>) -> Result<Value, Error> {
    let Kind::Message(entry) = kind else { return Err(Error::internal(format!("{at}: a map without an entry"))) };
    let Json::Object(object) = value else { return Err(at.expected("an object", &value)) };
    let (keys, values) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
    let mut entries = HashMap::with_capacity(object.len());
    for (key, value) in object {
        let here = At::Field(at, &key);
        let value = single(&values, value, &here)?;
        let key = map_key(&keys, &key).ok_or_else(|| here.wrong("this is no key of that map"))?;
        entries.insert(key, value);
    }
    Ok(Value::Map(entries))
}

fn map_key(kind: &Kind, text: &str) -> Option<MapKey> {
    Some(match kind {
        Kind::String => MapKey::String(text.to_owned()),
        Kind::Bool => MapKey::Bool(text.parse().ok()?),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => MapKey::I32(text.parse().ok()?),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => MapKey::I64(text.parse().ok()?),
        Kind::Uint32 | Kind::Fixed32 => MapKey::U32(text.parse().ok()?),
        Kind::Uint64 | Kind::Fixed64 => MapKey::U64(text.parse().ok()?),
        Kind::Double | Kind::Float | Kind::Bytes | Kind::Message(_) | Kind::Enum(_) => return None,
    })
}

/// One value of that kind.
pub(crate) fn single(kind: &Kind, value: Json, at: &At<'_>) -> Result<Value, Error> {
    match kind {
        Kind::Message(m) => message(m, value, at).map(Value::Message),
        Kind::Enum(e) => enumeration(e, &value, at).map(Value::EnumNumber),
        Kind::Bool => value.as_bool().map(Value::Bool).ok_or_else(|| at.expected("true or false", &value)),
        Kind::String => match value {
            Json::String(text) => Ok(Value::String(text)),
            other => Err(at.expected("a text", &other)),
        },
        Kind::Bytes => match value.as_str().and_then(base64) {
            Some(bytes) => Ok(Value::Bytes(bytes.into())),
            None => Err(at.expected("bytes in base64", &value)),
        },
        Kind::Double => float(&value, at).map(Value::F64),
        Kind::Float => match float(&value, at)? {
            n if n.is_finite() && n.abs() > f64::from(f32::MAX) => Err(at.expected("a smaller number", &value)),
            n => Ok(Value::F32(n as f32)),
        },
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => integer(&value, at, i32::MIN, i32::MAX).map(Value::I32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => integer(&value, at, i64::MIN, i64::MAX).map(Value::I64),
        Kind::Uint32 | Kind::Fixed32 => integer(&value, at, u32::MIN, u32::MAX).map(Value::U32),
        Kind::Uint64 | Kind::Fixed64 => integer(&value, at, u64::MIN, u64::MAX).map(Value::U64),
    }
}

fn integer<T: TryFrom<i128> + fmt::Display>(value: &Json, at: &At<'_>, min: T, max: T) -> Result<T, Error> {
    let found = whole(value).and_then(|n| T::try_from(n).ok());
    found.ok_or_else(|| at.expected(format!("a whole number from {min} to {max}"), value))
}

/// A whole number, also as a text, also spelt as 5.0.
fn whole(value: &Json) -> Option<i128> {
    match value {
        Json::String(text) => text.parse().ok(),
        Json::Number(n) => match n.as_f64() {
            _ if n.is_i64() => n.as_i64().map(i128::from),
            _ if n.is_u64() => n.as_u64().map(i128::from),
            Some(f) if f.fract() == 0.0 && f.abs() < 1e20 => Some(f as i128),
            _ => None,
        },
        _ => None,
    }
}

fn float(value: &Json, at: &At<'_>) -> Result<f64, Error> {
    let found = match value {
        Json::Number(n) => n.as_f64(),
        Json::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            text => text.parse().ok().filter(|f: &f64| f.is_finite()),
        },
        _ => None,
    };
    found.ok_or_else(|| at.expected("a number", value))
}

fn enumeration(e: &EnumDescriptor, value: &Json, at: &At<'_>) -> Result<i32, Error> {
    let found = match value {
        Json::String(name) => e.get_value_by_name(name).map(|v| v.number()),
        Json::Number(_) => whole(value).and_then(|n| i32::try_from(n).ok()),
        _ => None,
    };
    found.ok_or_else(|| {
        let known: Vec<String> = e.values().map(|v| v.name().to_owned()).collect();
        at.expected(format!("one of {}", known.join(", ")), value).allowing(known)
    })
}

/// Either alphabet, with or without padding, as proto's JSON has it.
fn base64(text: &str) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let alphabet = if text.contains(['-', '_']) { &URL_SAFE } else { &STANDARD };
    GeneralPurpose::new(alphabet, config).decode(text).ok()
}

fn well_known(descriptor: &MessageDescriptor, value: Json, at: &At<'_>) -> Result<DynamicMessage, Error> {
    let name = descriptor.full_name();
    if name == "google.protobuf.FieldMask" {
        return field_mask(descriptor, &value, at);
    }
    let what = match name {
        "google.protobuf.Timestamp" => "a time such as \"2026-01-29T15:10:00Z\"",
        "google.protobuf.Duration" => "a duration such as \"1.5s\"",
        "google.protobuf.Struct" => "an object",
        "google.protobuf.ListValue" => "a list",
        other => other.rsplit('.').next().unwrap_or(other),
    };
    let wrong = at.expected(what, &value);
    DynamicMessage::deserialize(descriptor.clone(), value).map_err(|_| wrong)
}

/// Paths with commas between, taken as they stand: a label's name is not a field's.
fn field_mask(descriptor: &MessageDescriptor, value: &Json, at: &At<'_>) -> Result<DynamicMessage, Error> {
    let Json::String(text) = value else {
        return Err(at.expected("field paths with commas between", value));
    };
    let paths = text.split(',').filter(|p| !p.is_empty()).map(str::to_owned);
    let mut mask = DynamicMessage::new(descriptor.clone());
    mask.try_set_field_by_number(1, Value::List(paths.map(Value::String).collect()))
        .map_err(|e| Error::internal(format!("{at}: {e}")))?;
    Ok(mask)
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
