//! Firmware updates: the controller fetches an image and works on it as a task.

use crate::client::{Client, Yes};
use crate::json;
use crate::places::Seen;
use http::Method;
use provider::ProviderResult;
use serde_json::{Value, json};

/// Begins an update. An empty name: it has begun, and the controller names no task for it.
pub async fn update(client: &Client, seen: &Seen, image_url: &str, targets: &[String]) -> ProviderResult<String> {
    let missing = || client.lacks("firmware updates");
    let service = client.get(seen.places.update_service.as_deref().ok_or_else(missing)?).await?;
    let action = "/Actions/#UpdateService.SimpleUpdate";
    let target = json::text(&service, &format!("{action}/target"));
    if !json::is_path(&target) || json::flag(&service, "/ServiceEnabled") == Some(false) {
        return Err(missing());
    }
    let mut body = json!({ "ImageURI": image_url });
    let protocol = image_url.split_once("://").map(|(scheme, _)| scheme.to_ascii_uppercase()).unwrap_or_default();
    let protocols = json::words(&service, &format!("{action}/TransferProtocol@Redfish.AllowableValues"));
    if protocols.contains(&protocol) {
        body["TransferProtocol"] = protocol.into();
    }
    if !targets.is_empty() {
        body["Targets"] = targets.into();
    }
    let task = match client.change(Method::POST, &target, &body, "update its firmware").await? {
        Yes::Task(task) => task,
        Yes::Done(value, place) => place.or_else(|| {
            let is_task = value.get("TaskState").is_some();
            value
                .get("@odata.id")
                .and_then(Value::as_str)
                .filter(|path| is_task && json::is_path(path))
                .map(str::to_owned)
        }),
    };
    Ok(task.unwrap_or_default())
}
