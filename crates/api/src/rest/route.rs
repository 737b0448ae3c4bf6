//! What a REST path stands for, read from the descriptors once at the start: the call, where each of its
//! request's fields comes from, and how its answer is told.

use super::tree::{Segment, parse};
use crate::json::{is_well_known, message_of};
use http::Method;
use http::uri::PathAndQuery;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor, Value,
};
use service::access_table::{Effect, Rule, rule_of};
use std::collections::BTreeMap;

/// A field by way of the messages that hold it.
pub(crate) type FieldPath = Vec<FieldDescriptor>;

/// What the body of a request holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Takes {
    Nothing,
    /// All that the path does not name.
    Whole,
    Field(FieldDescriptor),
}

pub(crate) struct Route {
    pub method: Method,
    pub segments: Vec<Segment>,
    pub rpc: MethodDescriptor,
    /// Who may.
    pub rule: &'static Rule,
    /// Where the same call is found through the other door.
    pub grpc: PathAndQuery,
    pub input: MessageDescriptor,
    pub output: MessageDescriptor,
    /// The fields that the path holds, in its order.
    pub variables: Vec<FieldPath>,
    pub takes: Takes,
    /// The fields that the query may hold, by name.
    pub query: BTreeMap<String, FieldPath>,
    /// Where to say which fields a PATCH holds.
    pub mask: Option<FieldDescriptor>,
    /// Streams: the request's field that says after which sequence to go on.
    pub resume: Option<FieldDescriptor>,
    /// Streams: the answer's field that this sequence is in.
    pub sequence: Option<FieldDescriptor>,
    /// Streams of bytes: the answer's field they are in.
    pub raw: Option<FieldDescriptor>,
}

impl Route {
    pub fn streams(&self) -> bool {
        self.rpc.is_server_streaming()
    }

    pub fn mutates(&self) -> bool {
        self.rule.effect == Effect::Changes
    }
}

/// Every call's route; a call without one is a defect, found at the start.
pub(crate) fn all(pool: &DescriptorPool) -> Result<Vec<Route>, String> {
    let mut routes = Vec::new();
    for service in pool.services() {
        for rpc in service.methods() {
            let name = rpc.full_name().to_owned();
            routes.push(route(pool, rpc).map_err(|problem| format!("{name}: {problem}"))?);
        }
    }
    Ok(routes)
}

/// The method, the path template and the body of a call's `google.api.http` option.
fn option(pool: &DescriptorPool, rpc: &MethodDescriptor) -> Result<(Method, String, String), String> {
    let http = pool.get_extension_by_name("google.api.http").ok_or("the descriptors know no google.api.http")?;
    let options = rpc.options();
    if !options.has_extension(&http) {
        return Err("has no google.api.http option".to_owned());
    }
    let rule = options.get_extension(&http);
    let rule = rule.as_message().ok_or("its google.api.http option is no message")?;
    let text = |name: &str| match rule.get_field_by_name(name).as_deref() {
        Some(Value::String(text)) if rule.has_field_by_name(name) => Some(text.clone()),
        _ => None,
    };
    let body = text("body").unwrap_or_default();
    for (name, method) in [
        ("get", Method::GET),
        ("put", Method::PUT),
        ("post", Method::POST),
        ("delete", Method::DELETE),
        ("patch", Method::PATCH),
    ] {
        if let Some(template) = text(name) {
            return Ok((method, template, body));
        }
    }
    Err("its google.api.http option names no method that we speak".to_owned())
}

fn route(pool: &DescriptorPool, rpc: MethodDescriptor) -> Result<Route, String> {
    if rpc.is_client_streaming() {
        return Err("streams from clients have no REST form".to_owned());
    }
    let (method, template, body) = option(pool, &rpc)?;
    let (input, output) = (rpc.input(), rpc.output());
    let grpc = format!("/{}/{}", rpc.parent_service().full_name(), rpc.name());
    let rule = rule_of(&grpc[1..]).ok_or("has no line in the access table")?;
    if (method == Method::GET) != (rule.effect == Effect::Reads) {
        return Err("changes something by GET, or reads by another method".to_owned());
    }
    let grpc = grpc.parse().map_err(|e| format!("{grpc} is no path: {e}"))?;
    let segments = parse(&template)?;
    let mut variables = Vec::new();
    for segment in &segments {
        if let Segment::Variable(name) = segment {
            variables.push(variable(&input, name)?);
        }
    }
    let takes = match body.as_str() {
        "" => Takes::Nothing,
        "*" => Takes::Whole,
        name => Takes::Field(
            input
                .get_field_by_name(name)
                .filter(|f| !f.is_list() && message_of(f).is_some())
                .ok_or_else(|| format!("its body {name:?} is no message in {}", input.full_name()))?,
        ),
    };
    if method == Method::GET && takes != Takes::Nothing {
        return Err("a GET takes no body".to_owned());
    }
    let mut query = BTreeMap::new();
    if takes != Takes::Whole {
        names(&input, &[], &variables, &takes, &mut query);
    }
    let mask = match &takes {
        Takes::Field(_) if method == Method::PATCH => input.get_field_by_name("update_mask").filter(is_mask),
        _ => None,
    };
    let streams = rpc.is_server_streaming();
    let number = |m: &MessageDescriptor, name: &str| {
        m.get_field_by_name(name).filter(|f| streams && !f.is_list() && f.kind() == Kind::Uint64)
    };
    let sequence = number(&output, "sequence").or_else(|| number(&output, "offset"));
    let resume = ["after_sequence", "after", "after_offset"].iter().find_map(|name| number(&input, name));
    let resume = resume.filter(|_| sequence.is_some());
    let raw = output.get_field_by_name("data").filter(|f| streams && !f.is_list() && f.kind() == Kind::Bytes);
    Ok(Route { method, segments, rpc, rule, grpc, input, output, variables, takes, query, mask, resume, sequence, raw })
}

fn is_mask(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Message(m) if m.full_name() == "google.protobuf.FieldMask")
}

fn variable(input: &MessageDescriptor, name: &str) -> Result<FieldPath, String> {
    let mut path = Vec::new();
    let mut message = Some(input.clone());
    for part in name.split('.') {
        let field = message.and_then(|m| m.get_field_by_name(part));
        let field = field.ok_or_else(|| format!("its path names {name}, which {} has not", input.full_name()))?;
        message = message_of(&field);
        path.push(field);
    }
    match path.last() {
        Some(last) if last.cardinality() != Cardinality::Repeated && last.kind().as_message().is_none() => Ok(path),
        _ => Err(format!("its path names {name}, which is no plain field")),
    }
}

/// Messages in messages of a query; no request of ours is that deep, and none is endless.
const DEPTH_MAX: usize = 4;

/// Collects the names of all plain fields that come neither in the path nor in the body.
fn names(
    message: &MessageDescriptor,
    above: &[FieldDescriptor],
    variables: &[FieldPath],
    takes: &Takes,
    found: &mut BTreeMap<String, FieldPath>,
) {
    for field in message.fields() {
        let path: FieldPath = above.iter().cloned().chain([field.clone()]).collect();
        let in_body = above.is_empty() && *takes == Takes::Field(field.clone());
        if field.is_map() || in_body || variables.contains(&path) {
            continue;
        }
        match field.kind() {
            Kind::Message(m) if !is_well_known(&m) => {
                if !field.is_list() && path.len() < DEPTH_MAX {
                    names(&m, &path, variables, takes, found);
                }
            }
            Kind::Message(m) if is_free(&m) => {}
            _ => {
                found.insert(dotted(&path), path);
            }
        }
    }
}

/// Free JSON has no place in a query.
fn is_free(message: &MessageDescriptor) -> bool {
    ["Struct", "Value", "ListValue", "Any"].iter().any(|n| message.full_name() == format!("google.protobuf.{n}"))
}

pub(crate) fn dotted(path: &[FieldDescriptor]) -> String {
    path.iter().map(FieldDescriptor::name).collect::<Vec<_>>().join(".")
}

/// The message in which the last field of a path stands, made where it is not there yet.
pub(crate) fn holder<'a>(message: &'a mut DynamicMessage, path: &[FieldDescriptor]) -> Option<&'a mut DynamicMessage> {
    match path {
        [] => None,
        [_] => Some(message),
        [first, rest @ ..] => holder(message.get_field_mut(first).as_message_mut()?, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::pool;

    fn routes() -> Vec<Route> {
        all(pool().expect("descriptors")).expect("every call has a route")
    }

    fn of(name: &str) -> Route {
        routes().into_iter().find(|r| r.rpc.name() == name).expect("the call is there")
    }

    #[test]
    fn every_call_has_a_route_below_the_one_prefix() {
        let routes = routes();
        assert!(routes.len() > 25, "{}", routes.len());
        for route in &routes {
            let prefix = ["api", "v1"].map(|s| Segment::Literal(s.to_owned()));
            assert!(route.segments.starts_with(&prefix), "{:?}", route.segments);
        }
    }

    #[test]
    fn fields_come_from_the_path_the_query_or_the_body() {
        let names = |r: &Route| r.query.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&of("ListMachines")), ["filter", "page_size", "page_token"]);
        assert_eq!(names(&of("StreamRunLogs")), ["after_sequence", "no_follow"]);
        assert_eq!(names(&of("UpdateMachine")), ["update_mask"]);
        assert_eq!(dotted(&of("UpdateMachine").variables[0]), "machine.machine_id");
        assert!(of("SetPhase").query.is_empty() && of("GetMachine").query.is_empty());
        assert_eq!(of("StartRun").takes, Takes::Whole);
        assert!(matches!(of("CreatePlan").takes, Takes::Field(f) if f.name() == "plan"));
    }

    #[test]
    fn streams_know_their_resume_token() {
        let name = |f: &Option<FieldDescriptor>| f.as_ref().map(|f| f.name().to_owned());
        for (call, resume, sequence, raw) in [
            ("WatchRuns", "after_sequence", "sequence", None),
            ("StreamRunLogs", "after_sequence", "sequence", Some("data")),
            ("WatchEvents", "after", "sequence", None),
            ("StreamTaskOutput", "after_offset", "offset", Some("data")),
        ] {
            let route = of(call);
            assert!(route.streams());
            assert_eq!(name(&route.resume).as_deref(), Some(resume), "{call}");
            assert_eq!(name(&route.sequence).as_deref(), Some(sequence), "{call}");
            assert_eq!(name(&route.raw).as_deref(), raw, "{call}");
        }
        assert!(of("UpdateMachine").mask.is_some() && of("RegisterMachine").mask.is_none());
    }
}
