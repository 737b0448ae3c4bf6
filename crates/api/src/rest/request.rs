//! From a request's path, query and body to the message of the call.

use super::patch;
use super::route::{FieldPath, Route, Takes, dotted, holder};
use super::text::pairs;
use crate::json::{At, Strict, message_of, read, single};
use domain::Error;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};
use serde_json::Value as Json;

/// What a request brought, apart from its headers.
pub(crate) struct Brought<'a> {
    /// The segments of the path that stand for variables.
    pub captured: &'a [&'a str],
    pub query: Option<&'a str>,
    pub body: &'a [u8],
    /// After which event of a stream to go on.
    pub last_event: Option<&'a str>,
}

pub(crate) fn message(route: &Route, brought: &Brought<'_>) -> Result<DynamicMessage, Error> {
    let query = pairs(brought.query.unwrap_or_default())?;
    let mut message = DynamicMessage::new(route.input.clone());
    match (&route.takes, parsed(brought.body)?) {
        (Takes::Whole, Some(body)) => message = read(&route.input, body)?,
        (Takes::Field(field), body) => {
            // a mask that is given is taken as it is
            let mask = route
                .mask
                .as_ref()
                .filter(|mask| !query.iter().any(|(name, text)| name == mask.name() && !text.is_empty()));
            put_body(route, field, mask, body, &mut message)?;
        }
        (Takes::Whole, None) | (Takes::Nothing, _) => {}
    }
    put_query(route, query, &mut message)?;
    for (path, text) in route.variables.iter().zip(brought.captured) {
        put_variable(path, text, &mut message)?;
    }
    if let (Some(field), Some(text)) = (&route.resume, brought.last_event.filter(|text| !text.is_empty())) {
        let after =
            text.trim().parse().map_err(|_| Error::field("last-event-id", format!("{text:?} is no sequence")))?;
        set(&mut message, field, Value::U64(after))?;
    }
    Ok(message)
}

fn set(message: &mut DynamicMessage, field: &FieldDescriptor, value: Value) -> Result<(), Error> {
    message.try_set_field(field, value).map_err(|e| Error::internal(format!("setting {}: {e}", field.full_name())))
}

/// The body's JSON; nothing, and `null`, is nothing.
fn parsed(body: &[u8]) -> Result<Option<Json>, Error> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    match serde_json::from_slice(body) {
        Ok(Strict(Json::Null)) => Ok(None),
        Ok(Strict(value)) => Ok(Some(value)),
        Err(e) => Err(Error::field("body", format!("is not valid JSON: {e}"))),
    }
}

/// The body as one field of the request.
fn put_body(
    route: &Route,
    field: &FieldDescriptor,
    mask: Option<&FieldDescriptor>,
    body: Option<Json>,
    message: &mut DynamicMessage,
) -> Result<(), Error> {
    let Some(descriptor) = message_of(field) else { return Err(Error::internal("a body that is no message")) };
    let mut body = body.map(|body| unwrapped(field, &descriptor, body));
    if let Some(mask) = mask {
        let mut nothing = serde_json::Map::new();
        let object = match &mut body {
            Some(Json::Object(object)) => object,
            _ => &mut nothing,
        };
        let in_path: Vec<&str> = route
            .variables
            .iter()
            .filter_map(|path| match path.as_slice() {
                [first, second] if first == field => Some(second.name()),
                _ => None,
            })
            .collect();
        let paths = patch::paths(&descriptor, object, &in_path);
        put_mask(mask, paths, message)?;
    }
    match body {
        Some(body) => set(message, field, Value::Message(read(&descriptor, body)?)),
        None => Ok(()),
    }
}

fn put_mask(mask: &FieldDescriptor, paths: Vec<String>, message: &mut DynamicMessage) -> Result<(), Error> {
    let Kind::Message(descriptor) = mask.kind() else { return Err(Error::internal("a mask that is no message")) };
    let mut value = DynamicMessage::new(descriptor);
    let paths = Value::List(paths.into_iter().map(Value::String).collect());
    value.try_set_field_by_number(1, paths).map_err(|e| Error::internal(format!("setting a mask: {e}")))?;
    set(message, mask, Value::Message(value))
}

/// `{"machine": {…}}` is taken for `{…}` where it can mean nothing else.
fn unwrapped(field: &FieldDescriptor, descriptor: &MessageDescriptor, body: Json) -> Json {
    match body {
        Json::Object(mut object) if object.len() == 1 && descriptor.get_field_by_name(field.name()).is_none() => {
            object.remove(field.name()).unwrap_or(Json::Object(object))
        }
        other => other,
    }
}

fn put_query(route: &Route, query: Vec<(String, String)>, message: &mut DynamicMessage) -> Result<(), Error> {
    let mut seen: Vec<String> = Vec::new();
    for (name, text) in query {
        let Some(path) = route.query.get(&name) else {
            let known: Vec<&str> = route.query.keys().map(String::as_str).collect();
            let problem = match known.as_slice() {
                [] => "unknown in the query; this call takes nothing there".to_owned(),
                names => format!("unknown in the query; known are: {}", names.join(", ")),
            };
            return Err(Error::field(&name, problem).allowing(known));
        };
        let Some((field, at)) = path.last().zip(holder(message, path)) else {
            return Err(Error::internal(format!("{name} leads nowhere")));
        };
        let is_text = matches!(field.kind(), Kind::String);
        if text.is_empty() && !is_text {
            continue; // `?page_size=` is a form that was not filled in
        }
        let value = single(&field.kind(), from_text(&field.kind(), text), &At::Field(&At::Root, &name))?;
        if field.is_list() {
            match at.get_field_mut(field).as_list_mut() {
                Some(list) => list.push(value),
                None => return Err(Error::internal(format!("{name} is no list"))),
            }
            continue;
        }
        if seen.contains(&name) {
            return Err(Error::field(&name, "stands twice in the query"));
        }
        set(at, field, value)?;
        seen.push(name);
    }
    Ok(())
}

/// A text as the JSON that a body would hold in its place.
fn from_text(kind: &Kind, text: String) -> Json {
    match (kind, text.as_str()) {
        (Kind::Bool, "true") => Json::Bool(true),
        (Kind::Bool, "false") => Json::Bool(false),
        (Kind::Enum(_), digits) => digits.parse::<i32>().map_or(Json::String(text), Json::from),
        _ => Json::String(text),
    }
}

/// A field that the path holds. The body may repeat it, but not contradict it.
fn put_variable(path: &FieldPath, text: &str, message: &mut DynamicMessage) -> Result<(), Error> {
    let Some((field, at)) = path.last().zip(holder(message, path)) else {
        return Err(Error::internal(format!("{} leads nowhere", dotted(path))));
    };
    let name = field.name();
    let value = single(&field.kind(), from_text(&field.kind(), text.to_owned()), &At::Field(&At::Root, name))?;
    if at.has_field(field) && *at.get_field(field) != value {
        return Err(Error::field(name, "the body and the path say different things"));
    }
    set(at, field, value)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
