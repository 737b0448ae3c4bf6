//! The gRPC door: every call's message as bytes or as JSON made into bytes, in frames that lie about their
//! length, are marked as compressed or broken off, with any headers.

use crate::wire::{Asked, judged, of_grpc};
use crate::world::World;
use prost::Message as _;
use prost_reflect::MethodDescriptor;
use testkit::fuzz::Fuzz;

fn methods() -> Vec<MethodDescriptor> {
    let pool = api::json::pool().expect("descriptors");
    pool.services().flat_map(|s| s.methods().collect::<Vec<_>>()).collect()
}

fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// One for each call, with every field there.
fn seeds() -> Vec<String> {
    methods().iter().map(|method| format!("{}\n\n{}", path(method), filled(&method.input(), 0))).collect()
}

/// A value for every field, so that mutation has something to take hold of.
fn filled(message: &prost_reflect::MessageDescriptor, depth: usize) -> serde_json::Value {
    use prost_reflect::Kind;
    use serde_json::json;
    let mut object = serde_json::Map::new();
    for field in message.fields() {
        // one of several
        if api::json::is_choice(&field) && field.name() != "ssh" {
            continue;
        }
        let value = match field.kind() {
            _ if field.is_map() => json!({"a": "b"}),
            Kind::Message(m) if m.full_name() == "google.protobuf.FieldMask" => json!("labels.a,spec.rack"),
            Kind::Message(m) if m.full_name().starts_with("google.protobuf.") || depth > 3 => continue,
            Kind::Message(m) => filled(&m, depth + 1),
            Kind::Enum(e) => json!(e.values().nth(2).or_else(|| e.values().next()).map(|v| v.name().to_owned())),
            Kind::Bool => json!(true),
            Kind::String => json!(sample(field.name())),
            Kind::Bytes => json!("AAEC"),
            _ => json!(1),
        };
        object.insert(field.name().to_owned(), if field.is_list() { json!([value]) } else { value });
    }
    serde_json::Value::Object(object)
}

fn sample(field: &str) -> &'static str {
    match field {
        "machine_id" => "m-1",
        "run_id" | "execution_id" => "RUN",
        "token_id" => "TOKEN",
        "id" => "m-1",
        "provider" => "sim",
        "type" => "REBOOT",
        "role" => "viewer",
        "mac_addresses" => "aa:bb:cc:dd:ee:01",
        "system_uuid" => "00000000-0000-0000-0000-000000000002",
        "mode" => "bmc",
        "filter" | "page_token" | "plan_id" | "customer_id" | "override_reason" => "",
        _ => "x",
    }
}

const WORDS: &[&str] = &[
    "x-frame: longer",
    "x-frame: shorter",
    "x-frame: compressed",
    "x-frame: bare",
    "x-frame: twice",
    "x-frame: huge",
    "grpc-timeout: 1n",
    "grpc-timeout: 99999999H",
    "grpc-encoding: gzip",
    "te: trailers",
    "x-idempotency-key: k",
    "authorization: Bearer ",
    "authorization: -",
    "content-type: application/grpc+json",
    "x-request-id: ",
    "traceparent: ",
    "\n\n",
    "m-1",
    "m-2",
    "m-3",
    "RUN",
    "TOKEN",
    "READY",
    "REPAVE",
    "\"machine\":{",
    "\"labels\":{\"sim.fault.reboot\":\"hang\"}",
    "\"spec\":{",
    "\"version\":18446744073709551615",
    "\x0a\x03m-1",
    "\x0a\u{7f}",
    "\x12\x00",
    "\x08\x7f",
    "\x5b\x5c",
    "\x0a\x0a\x0a\x0a",
];

fn framed(frame: &str, message: &[u8]) -> Vec<u8> {
    let length = message.len();
    let (compressed, declared) = match frame {
        "longer" => (0, length + 7),
        "shorter" => (0, length.saturating_sub(3)),
        "compressed" => (1, length),
        "huge" => (0, u32::MAX as usize),
        "bare" => return message.to_vec(),
        "twice" => {
            let mut once = framed("", message);
            once.extend(framed("", message));
            return once;
        }
        _ => (0, length),
    };
    let mut bytes = vec![compressed];
    bytes.extend(u32::try_from(declared).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(message);
    bytes
}

#[test]
fn grpc() {
    let names: Vec<String> = methods().iter().map(path).collect();
    Fuzz::new("grpc", module_path!()).seeds(seeds()).words(names).words(WORDS).inputs(1_500).run(|| {
        let world = World::new();
        let (run, token) = world.ids();
        let methods = methods();
        move |input| {
            let asked = Asked::read(input);
            let line = String::from_utf8_lossy(asked.line).trim().to_owned();
            let method = methods.iter().find(|m| path(m) == line);
            let message = message(method, asked.body, &run, &token);
            let frame = asked.headers.iter().find_map(|h| h.strip_prefix(b"x-frame: "));
            let body = framed(&String::from_utf8_lossy(frame.unwrap_or_default()), &message);
            let mut request = format!("POST {line} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n").into_bytes();
            if !asked.has("content-type:") {
                request.extend(b"content-type: application/grpc\r\n");
            }
            if !asked.has("authorization:") {
                request.extend(format!("authorization: Bearer {}\r\n", world.token).as_bytes());
            }
            // how much is sent is ours to say: a body that never ends is the other target's
            let own = |h: &&&[u8]| {
                let low = h.to_ascii_lowercase();
                !low.starts_with(b"content-length")
                    && !low.starts_with(b"transfer-encoding")
                    && !low.starts_with(b"expect")
            };
            for header in asked.headers.iter().filter(own) {
                request.extend(*header);
                request.extend(b"\r\n");
            }
            request.extend(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
            request.extend(body);
            let shape = judged(&world, &request, of_grpc)?;
            Ok(format!("{} {shape}", method.map_or("none", |m| m.name())))
        }
    });
}

/// JSON that fits is made into a message; everything else is taken as the bytes of one.
fn message(method: Option<&MethodDescriptor>, body: &[u8], run: &str, token: &str) -> Vec<u8> {
    let named = String::from_utf8_lossy(body).replace("RUN", run).replace("TOKEN", token);
    let json = serde_json::from_str(&named).ok().zip(method);
    let read = json.and_then(|(json, method)| api::json::read(&method.input(), json).ok());
    read.map_or_else(|| body.to_vec(), |message| message.encode_to_vec())
}
