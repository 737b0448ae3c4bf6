//! The OpenAPI description, emitted from the descriptors that the paths come from: it cannot be stale.

mod comments;
mod schema;

use super::route::{Route, Takes, all};
use super::tree::Segment;
use super::{OPENAPI, error};
use crate::json::{message_of, pool};
use comments::Comments;
use domain::Error;
use prost_reflect::FieldDescriptor;
use schema::{Schemas, Side};
use serde_json::{Map, Value, json};

const ABOUT: &str = "The REST door of Millwright: the same calls as gRPC, in JSON. Fields have their proto names. \
In answers every field is present and what is absent is `null`; integers up to 32 bits are numbers, longer ones \
texts; bytes are base64; times are RFC 3339. In requests `null` is absent, numbers may be texts, enums names or \
numbers, and unknown fields are refused. Lists are paged by `page_size` and `page_token`. Streams are server-sent \
events: `id` is the sequence to resume after (`Last-Event-ID`), `data` one message on one line; `event: end` says \
that there is no more, `event: error` carries the error object, and a comment every 15 seconds says that the stream \
is alive.";

const PATCHING: &str = "Changes what the body's keys name and nothing else: a label or a field of the spec by \
itself, `null` takes it away. `version` is a precondition when it is not zero; `status` is passed over.";

const MASKING: &str = "Field paths with commas between, taken instead of what the body's keys say: what is named \
here and absent from the body is cleared.";

/// The whole description, as it is served and checked in.
pub fn openapi() -> Result<String, Error> {
    let pool = pool()?;
    let routes = all(pool).map_err(Error::internal)?;
    let comments = Comments::of(pool);
    let mut schemas = Schemas::new(pool, &comments);
    let mut paths: Map<String, Value> = Map::new();
    for route in &routes {
        let path = paths.entry(path(route)).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation(route, &mut schemas);
    }
    paths.insert(OPENAPI.to_owned(), json!({ "get": about_itself() }));
    let tags: Vec<Value> = pool
        .services()
        .map(|s| {
            let text = schemas.comment(s.parent_file().name(), s.path());
            json!({ "name": s.name(), "description": text.unwrap_or_default() })
        })
        .collect();
    let mut components = schemas.into_map();
    components.insert("Error".to_owned(), error_schema());
    let document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Millwright", "version": "v1", "description": ABOUT,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" } },
        "servers": [{ "url": "/" }],
        "security": [{ "bearer": [] }],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": components,
            "parameters": { "IdempotencyKey": idempotency_key(), "LastEventId": last_event_id() },
            "responses": { "Error": error_response() },
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer",
                "description": "A token, as `millwright token` makes them." } },
        },
    });
    let text = serde_json::to_string_pretty(&document);
    Ok(text.map_err(|e| Error::internal(format!("writing the OpenAPI description: {e}")))? + "\n")
}

/// The path with the plain names of its fields: calls that share one share its entry.
fn path(route: &Route) -> String {
    let part = |segment: &Segment| match segment {
        Segment::Literal(text) => format!("/{text}"),
        Segment::Variable(name) => format!("/{{{}}}", name.rsplit('.').next().unwrap_or(name)),
    };
    route.segments.iter().map(part).collect()
}

fn operation(route: &Route, schemas: &mut Schemas<'_>) -> Value {
    let rpc = &route.rpc;
    let service = rpc.parent_service();
    let text = schemas.comment(rpc.parent_file().name(), rpc.path()).unwrap_or_default();
    let mut operation = json!({
        "operationId": format!("{}_{}", service.name(), rpc.name()),
        "tags": [service.name()],
        "summary": text.split(". ").next().unwrap_or_default().trim_end_matches('.'),
        "description": text,
        "parameters": parameters(route, schemas),
        "responses": {
            "200": answer(route, schemas),
            "default": { "$ref": "#/components/responses/Error" },
        },
    });
    if let Some(body) = body(route, schemas) {
        operation["requestBody"] = body;
    }
    if route.mask.is_some() {
        operation["description"] = format!("{text} {PATCHING}").into();
    }
    operation
}

fn parameters(route: &Route, schemas: &mut Schemas<'_>) -> Vec<Value> {
    let mut parameters = Vec::new();
    let mut add = |name: &str, place: &str, field: &FieldDescriptor| {
        let mut parameter = json!({ "name": name, "in": place, "schema": schemas.field(field, Side::Asked) });
        if place == "path" {
            parameter["required"] = true.into();
        }
        let is_mask = route.mask.as_ref() == Some(field);
        let comment = schemas.comment(field.parent_file().name(), field.path());
        if let Some(text) = if is_mask { Some(MASKING.to_owned()) } else { comment } {
            parameter["description"] = text.into();
        }
        parameters.push(parameter);
    };
    for field in route.variables.iter().filter_map(|path| path.last()) {
        add(field.name(), "path", field);
    }
    for (name, path) in &route.query {
        if let Some(field) = path.last() {
            add(name, "query", field);
        }
    }
    if route.mutates() {
        parameters.push(json!({ "$ref": "#/components/parameters/IdempotencyKey" }));
    }
    if route.resume.is_some() {
        parameters.push(json!({ "$ref": "#/components/parameters/LastEventId" }));
    }
    parameters
}

fn body(route: &Route, schemas: &mut Schemas<'_>) -> Option<Value> {
    let (schema, required) = match &route.takes {
        Takes::Nothing => return None,
        Takes::Whole => {
            let in_path: Vec<&FieldDescriptor> =
                route.variables.iter().filter(|p| p.len() == 1).filter_map(|p| p.first()).collect();
            let schema = schemas.object(&route.input, Side::Asked, &in_path);
            let is_empty = schema["properties"].as_object().is_none_or(Map::is_empty);
            (schema, !is_empty)
        }
        Takes::Field(field) => {
            let side = if route.mask.is_some() { Side::Change } else { Side::Asked };
            (schemas.message(&message_of(field)?, side), true)
        }
    };
    Some(json!({ "required": required, "content": { "application/json": { "schema": schema } } }))
}

fn answer(route: &Route, schemas: &mut Schemas<'_>) -> Value {
    let schema = schemas.message(&route.output, Side::Answer);
    if !route.streams() {
        return json!({ "description": "Done.", "content": { "application/json": { "schema": schema } } });
    }
    let mut content = json!({ "text/event-stream": { "schema": schema } });
    if route.raw.is_some() {
        content["text/plain"] = json!({ "schema": { "type": "string", "description": "The bytes alone, in order." } });
    }
    json!({ "description": "A stream of events; the schema is that of each event's `data`.", "content": content })
}

fn about_itself() -> Value {
    json!({
        "operationId": "OpenApi",
        "summary": "This description",
        "responses": {
            "200": { "description": "OpenAPI 3.1.",
                "content": { "application/json": { "schema": { "type": "object" } } } },
            "default": { "$ref": "#/components/responses/Error" },
        },
    })
}

fn idempotency_key() -> Value {
    json!({
        "name": "X-Idempotency-Key", "in": "header", "schema": { "type": "string" },
        "description": "The same key with the same body is the same request: it is carried out once.",
    })
}

fn last_event_id() -> Value {
    json!({
        "name": "Last-Event-ID", "in": "header", "schema": { "type": "string", "pattern": "^[0-9]*$" },
        "description": "The `id` of the last event that was seen: the stream goes on after it. Wins over the query.",
    })
}

fn error_response() -> Value {
    let statuses: Vec<String> = error::table().iter().map(|(code, status)| format!("{code} {status}")).collect();
    json!({
        "description": format!("Refused or failed. The code decides the HTTP status: {}.", statuses.join(", ")),
        "headers": {
            "Retry-After": { "schema": { "type": "integer" }, "description": "Seconds, where waiting may help." },
        },
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
    })
}

fn error_schema() -> Value {
    let mut codes: Vec<&str> = error::table().iter().map(|(code, _)| *code).collect();
    codes.sort_unstable();
    json!({
        "type": "object",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["code", "reason", "message", "details", "allowed"],
            "properties": {
                "code": { "type": "string", "enum": codes },
                "reason": { "type": "string", "description": "Stable: scripts may hold on to it." },
                "message": { "type": "string", "description": "For a person." },
                "details": { "type": "object", "additionalProperties": { "type": "string" } },
                "allowed": { "type": "array", "items": { "type": "string" },
                    "description": "What would be possible instead: states, names, methods." },
            },
        } },
    })
}
