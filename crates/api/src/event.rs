//! `EventService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open};
use futures::stream::{BoxStream, StreamExt as _};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use proto::millwright::v1 as pb;
use proto::millwright::v1::event_service_server::EventService;
use service::{LogRow, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Events(pub Service);

/// Free JSON as the wire has it. Numbers are doubles there.
fn value(json: serde_json::Value) -> Value {
    let kind = match json {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(b) => Kind::BoolValue(b),
        serde_json::Value::Number(n) => Kind::NumberValue(n.as_f64().unwrap_or(0.0)),
        serde_json::Value::String(s) => Kind::StringValue(s),
        serde_json::Value::Array(list) => Kind::ListValue(ListValue { values: list.into_iter().map(value).collect() }),
        serde_json::Value::Object(map) => Kind::StructValue(fields(map)),
    };
    Value { kind: Some(kind) }
}

fn fields(map: serde_json::Map<String, serde_json::Value>) -> Struct {
    Struct { fields: map.into_iter().map(|(k, v)| (k, value(v))).collect() }
}

/// An object of ours. A change that has no particulars is stored as its name alone.
pub(crate) fn object(json: serde_json::Value) -> Option<Struct> {
    match json {
        serde_json::Value::Object(map) => Some(fields(map)),
        serde_json::Value::String(name) => {
            Some(Struct { fields: [(name, value(serde_json::Value::Object(serde_json::Map::new())))].into() })
        }
        _ => None,
    }
}

fn event(row: &LogRow) -> pb::Event {
    pb::Event {
        sequence: row.sequence,
        at: Some(timestamp(row.at)),
        kind: row.entity_kind.clone(),
        id: row.entity_id.clone(),
        subject: row.subject.clone(),
        from: row.from_state.clone(),
        to: row.to_state.clone(),
        trigger: row.trigger.clone(),
        owner: row.owner.clone(),
        actor: row.actor.clone(),
        comment: row.comment.clone(),
        metadata: serde_json::from_str(&row.metadata).ok().and_then(object),
    }
}

#[tonic::async_trait]
impl EventService for Events {
    type WatchEventsStream = BoxStream<'static, Result<pb::Event, Status>>;

    async fn watch_events(
        &self,
        request: Request<pb::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let (call, r) = open(request, nothing)?;
        let rows = self.0.watch_events(&call, &r.filter, r.after, !r.no_follow).await.map_err(to_status)?;
        let stream = rows.map(|row| row.map(|row| event(&row)).map_err(to_status));
        Ok(Response::new(stream.boxed()))
    }
}
