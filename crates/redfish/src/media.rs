//! Virtual media: an image that the controller fetches and shows to the machine as a CD.

use crate::boot::LOOKS;
use crate::client::Client;
use crate::json;
use crate::places::{self, Seen};
use crate::task;
use domain::stage::FailureClass;
use http::Method;
use provider::{Ack, ProviderResult};
use serde_json::{Value, json};

const SLOTS_MAX: usize = 16;

pub async fn inserted(client: &Client, seen: &Seen) -> ProviderResult<Option<String>> {
    Ok(image(&slot(client, seen).await?.1))
}

pub async fn insert(client: &Client, seen: &Seen, url: &str) -> ProviderResult<Ack> {
    let (path, drive) = slot(client, seen).await?;
    match image(&drive) {
        Some(there) if there == url => return Ok(Ack::Done),
        // a drive holds one; not every controller makes room by itself
        Some(_) => drop(take_out(client, &path, &drive).await?),
        None => {}
    }
    let target = json::text(&drive, "/Actions/#VirtualMedia.InsertMedia/target");
    let what = "insert the virtual medium";
    let ack = if json::is_path(&target) {
        task::carry_out(client, Method::POST, &target, &json!({ "Image": url }), what).await?
    } else {
        task::carry_out(client, Method::PATCH, &path, &json!({"Image": url, "Inserted": true}), what).await?
    };
    shown(client, &path, Some(url), ack).await
}

pub async fn eject(client: &Client, seen: &Seen) -> ProviderResult<Ack> {
    let (path, drive) = slot(client, seen).await?;
    if image(&drive).is_none() {
        return Ok(Ack::Done);
    }
    take_out(client, &path, &drive).await
}

async fn take_out(client: &Client, path: &str, drive: &Value) -> ProviderResult<Ack> {
    let target = json::text(drive, "/Actions/#VirtualMedia.EjectMedia/target");
    let what = "eject the virtual medium";
    let ack = if json::is_path(&target) {
        task::carry_out(client, Method::POST, &target, &json!({}), what).await?
    } else {
        task::carry_out(client, Method::PATCH, path, &json!({"Image": null, "Inserted": false}), what).await?
    };
    shown(client, path, None, ack).await
}

/// Reads back what became of it.
async fn shown(client: &Client, path: &str, wanted: Option<&str>, ack: Ack) -> ProviderResult<Ack> {
    if ack == Ack::Accepted {
        return Ok(ack);
    }
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(client.timeouts.poll).await;
        }
        let now = image(&client.get(path).await?);
        // some give the image a name of their own
        if now.is_some() == wanted.is_some() {
            return Ok(Ack::Done);
        }
    }
    let (asked, found) = match wanted {
        Some(_) => ("insert a virtual medium", "none is inserted"),
        None => ("eject the virtual medium", "it is still inserted"),
    };
    let why = format!("accepted to {asked}, but reads back that {found}: it ignores what it is told");
    Err(client.refused(FailureClass::Hardware, &why))
}

/// Empty as well as absent: nothing is in.
fn image(drive: &Value) -> Option<String> {
    let image = json::first_text(drive, &["/Image", "/ImageName"]);
    let inserted = json::flag(drive, "/Inserted").unwrap_or(!image.is_empty());
    inserted.then_some(image)
}

/// The drive for CDs, of the system or of its manager.
async fn slot(client: &Client, seen: &Seen) -> ProviderResult<(String, Value)> {
    let mut collections: Vec<String> = json::link(&seen.system, "/VirtualMedia").into_iter().collect();
    if collections.is_empty() {
        for manager in places::managers_of(client, seen).await? {
            collections.extend(json::link(&client.get(&manager).await?, "/VirtualMedia"));
        }
    }
    for collection in collections {
        let Some(listed) = client.get_if_there(&collection).await? else { continue };
        for path in json::links(&listed, "/Members").into_iter().take(SLOTS_MAX) {
            let drive = client.get(&path).await?;
            if json::words(&drive, "/MediaTypes").iter().any(|kind| kind == "CD" || kind == "DVD") {
                return Ok((path, drive));
            }
        }
    }
    Err(client.lacks("virtual media for CDs"))
}
