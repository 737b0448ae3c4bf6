//! The one JSON form of our messages: proto field names in the order of their numbers, every field
//! present, what is absent as `null`, 64-bit integers as texts. REST and the command line share it.

mod read;
mod strict;
mod write;

pub use read::read;
pub(crate) use read::{At, field_named, single};
pub use strict::Strict;
pub use write::Json;

use domain::Error;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use std::sync::LazyLock;

static POOL: LazyLock<Result<DescriptorPool, String>> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS).map_err(|e| e.to_string()));

/// The descriptors of every message and call.
pub fn pool() -> Result<&'static DescriptorPool, Error> {
    POOL.as_ref().map_err(|e| Error::internal(format!("reading the built-in descriptors: {e}")))
}

/// A message's descriptor by its full name.
pub fn descriptor(name: &str) -> Result<MessageDescriptor, Error> {
    pool()?.get_message_by_name(name).ok_or_else(|| Error::internal(format!("the descriptors know no {name}")))
}

/// A message from the wire, with its descriptor.
pub fn decode(descriptor: MessageDescriptor, bytes: &[u8]) -> Result<DynamicMessage, Error> {
    let name = descriptor.full_name().to_owned();
    DynamicMessage::decode(descriptor, bytes).map_err(|e| Error::internal(format!("a {name} does not read: {e}")))
}

/// The message a field holds, unless it is a map or has a JSON form of its own.
pub fn message_of(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    match field.kind() {
        Kind::Message(m) if !field.is_map() && !is_well_known(&m) => Some(m),
        _ => None,
    }
}

/// Whether a field is one of several of which at most one is present.
pub fn is_choice(field: &FieldDescriptor) -> bool {
    field.containing_oneof().is_some_and(|oneof| !oneof.is_synthetic())
}

/// Whether a message has a JSON form of its own.
pub(crate) fn is_well_known(message: &MessageDescriptor) -> bool {
    message.full_name().starts_with("google.protobuf.")
}
