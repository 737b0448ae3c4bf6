//! Messages as JSON schemas. A message has up to three: as it is answered (every field is there), as it
//! may be asked with (none must be), and as a change (where `null` takes away).

use super::comments::Comments;
use crate::json::{is_choice, is_well_known};
use prost_reflect::{DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Answer,
    Asked,
    Change,
}

pub(super) struct Schemas<'a> {
    comments: &'a Comments,
    /// Names that more than one package has: those stand in full.
    ambiguous: BTreeSet<String>,
    /// Made so far; `null` while being made.
    made: BTreeMap<String, Value>,
}

impl<'a> Schemas<'a> {
    pub fn new(pool: &DescriptorPool, comments: &'a Comments) -> Self {
        let (mut seen, mut ambiguous) = (BTreeSet::new(), BTreeSet::new());
        let messages = pool.all_messages().map(|m| short(m.full_name(), m.package_name()));
        for name in messages.chain(pool.all_enums().map(|e| short(e.full_name(), e.package_name()))) {
            if !seen.insert(name.clone()) {
                ambiguous.insert(name);
            }
        }
        Self { comments, ambiguous, made: BTreeMap::new() }
    }

    pub fn into_map(self) -> BTreeMap<String, Value> {
        self.made
    }

    pub fn comment(&self, file: &str, path: &[i32]) -> Option<String> {
        self.comments.at(file, path).map(str::to_owned)
    }

    fn name(&self, full: &str, package: &str) -> String {
        let name = short(full, package);
        if self.ambiguous.contains(&name) { full.to_owned() } else { name }
    }

    /// A reference to a message's schema.
    pub fn message(&mut self, message: &MessageDescriptor, side: Side) -> Value {
        if is_well_known(message) {
            return well_known(message.full_name());
        }
        let suffix = match side {
            Side::Answer => "",
            Side::Asked => "Input",
            Side::Change => "Patch",
        };
        let name = format!("{}{suffix}", self.name(message.full_name(), message.package_name()));
        if !self.made.contains_key(&name) {
            self.made.insert(name.clone(), Value::Null);
            let schema = self.object(message, side, &[]);
            self.made.insert(name.clone(), schema);
        }
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    /// A message's schema itself, without the fields that come otherwise.
    pub fn object(&mut self, message: &MessageDescriptor, side: Side, without: &[&FieldDescriptor]) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in message.fields().filter(|f| !without.contains(&f)) {
            let mut schema = self.field(&field, side);
            if side != Side::Answer || (field.supports_presence() && !is_choice(&field)) {
                schema = nullable(schema);
            }
            let comment = self.comments.at(field.parent_file().name(), field.path());
            let choice = field.containing_oneof().filter(|_| is_choice(&field));
            let choice = choice.map(|oneof| format!("At most one of the {}s.", oneof.name()));
            let text = comment.map(str::to_owned).into_iter().chain(choice).collect::<Vec<_>>().join(" ");
            if !text.is_empty() {
                schema["description"] = text.into();
            }
            if !is_choice(&field) {
                required.push(field.name().to_owned());
            }
            properties.insert(field.name().to_owned(), schema);
        }
        let mut schema = json!({ "type": "object", "properties": properties });
        match side {
            Side::Answer if !required.is_empty() => schema["required"] = required.into(),
            Side::Answer => {}
            Side::Asked | Side::Change => schema["additionalProperties"] = false.into(),
        }
        if let Some(text) = self.comments.at(message.parent_file().name(), message.path()) {
            schema["description"] = text.into();
        }
        schema
    }

    /// The schema of what a field holds.
    pub fn field(&mut self, field: &FieldDescriptor, side: Side) -> Value {
        match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                let mut value = self.single(&entry.map_entry_value_field().kind(), side);
                if side == Side::Change {
                    value = nullable(value);
                }
                json!({ "type": "object", "additionalProperties": value })
            }
            kind if field.is_list() => json!({ "type": "array", "items": self.single(&kind, side) }),
            kind => self.single(&kind, side),
        }
    }

    fn single(&mut self, kind: &Kind, side: Side) -> Value {
        // texts for what a double cannot hold; numbers are taken all the same
        let long = |format: &str, pattern: &str| match side {
            Side::Answer => json!({ "type": "string", "format": format, "pattern": pattern }),
            Side::Asked | Side::Change => json!({ "type": ["string", "integer"], "format": format }),
        };
        match kind {
            Kind::Message(m) => self.message(m, side),
            Kind::Enum(e) => self.enumeration(e),
            Kind::Bool => json!({ "type": "boolean" }),
            Kind::String => json!({ "type": "string" }),
            Kind::Bytes => json!({ "type": "string", "contentEncoding": "base64" }),
            Kind::Double | Kind::Float => json!({ "type": "number" }),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({ "type": "integer", "format": "int32" }),
            Kind::Uint32 | Kind::Fixed32 => json!({ "type": "integer", "format": "int64", "minimum": 0 }),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => long("int64", "^-?[0-9]+$"),
            Kind::Uint64 | Kind::Fixed64 => long("uint64", "^[0-9]+$"),
        }
    }

    fn enumeration(&mut self, e: &EnumDescriptor) -> Value {
        let name = self.name(e.full_name(), e.package_name());
        let values: Vec<String> = e.values().map(|v| v.name().to_owned()).collect();
        self.made.entry(name.clone()).or_insert_with(|| json!({ "type": "string", "enum": values }));
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }
}

fn short(full: &str, package: &str) -> String {
    full.strip_prefix(package).map_or(full, |name| name.trim_start_matches('.')).to_owned()
}

fn well_known(name: &str) -> Value {
    match name {
        "google.protobuf.Timestamp" => json!({ "type": "string", "format": "date-time" }),
        "google.protobuf.Struct" => json!({ "type": "object", "additionalProperties": true }),
        "google.protobuf.FieldMask" => json!({ "type": "string" }),
        _ => json!({}),
    }
}

fn nullable(mut schema: Value) -> Value {
    match schema.get("type").cloned() {
        Some(Value::String(kind)) => schema["type"] = json!([kind, "null"]),
        Some(Value::Array(mut kinds)) => {
            kinds.push("null".into());
            schema["type"] = kinds.into();
        }
        _ if schema.get("$ref").is_some() => return json!({ "anyOf": [schema, { "type": "null" }] }),
        _ => {}
    }
    schema
}
