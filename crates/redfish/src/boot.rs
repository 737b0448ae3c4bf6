//! The boot override: set, and read back, since controllers accept what they then ignore.

use crate::client::Client;
use crate::json;
use crate::places::{Known, Seen};
use crate::quirks::Quirks;
use crate::task;
use domain::hardware::BootOverride;
use domain::plan::BootMode;
use domain::stage::FailureClass;
use http::Method;
use provider::{Ack, ProviderResult};
use serde_json::{Value, json};

const ALLOWED: &str = "/Boot/BootSourceOverrideTarget@Redfish.AllowableValues";
/// Looks at what a controller has made of a change, before it is believed to have ignored it.
pub const LOOKS: usize = 4;

/// Its words, the usual first.
const fn words(mode: BootMode) -> &'static [&'static str] {
    match mode {
        BootMode::Pxe => &["Pxe"],
        BootMode::Http => &["UefiHttp"],
        BootMode::Disk => &["Hdd"],
        BootMode::Cd => &["Cd", "UsbCd"],
    }
}

fn mode(word: &str) -> Option<BootMode> {
    BootMode::ALL.iter().copied().find(|mode| words(*mode).contains(&word))
}

/// The override in force. One that is none of ours (the setup menu, say) is not told.
pub fn state(system: &Value, quirks: Quirks) -> Option<BootOverride> {
    let mode = mode(&json::text(system, "/Boot/BootSourceOverrideTarget"))?;
    if quirks.boot_device_only {
        return (mode != BootMode::Disk).then_some(BootOverride { mode, persistent: true });
    }
    match json::text(system, "/Boot/BootSourceOverrideEnabled").as_str() {
        "Once" => Some(BootOverride { mode, persistent: false }),
        "Continuous" => Some(BootOverride { mode, persistent: true }),
        _ => None,
    }
}

/// The modes that can be asked for.
pub fn modes(system: &Value) -> Vec<BootMode> {
    let allowed = json::words(system, ALLOWED);
    let offers = |mode: &BootMode| words(*mode).iter().any(|word| allowed.iter().any(|a| a == word));
    BootMode::ALL.iter().copied().filter(offers).collect()
}

pub async fn set(
    client: &Client,
    known: &Known,
    named: &str,
    seen: Seen,
    boot: Option<BootOverride>,
) -> ProviderResult<Ack> {
    let quirks = seen.places.quirks;
    let wanted = expected(boot, quirks);
    if state(&seen.system, quirks) == wanted && !(boot.is_none() && is_foreign(&seen.system)) {
        return Ok(Ack::Done);
    }
    let Some(Value::Object(_)) = seen.system.get("Boot") else {
        return Err(client.lacks("a boot override"));
    };
    let change = json!({ "Boot": change(client, &seen.system, boot, quirks)? });
    let asked = spoken(boot);
    let what = format!("set the boot override to {asked}");
    let path = seen.places.system.clone();
    let ack = task::carry_out(client, Method::PATCH, &path, &change, &what).await?;
    if ack == Ack::Accepted {
        return Ok(ack);
    }
    let mut found = String::new();
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(client.timeouts.poll).await;
        }
        let now = known.system(client, named).await?;
        if state(&now.system, quirks) == wanted {
            return Ok(Ack::Done);
        }
        found = as_read(&now.system);
    }
    let why = format!("accepted the boot override {asked}, but reads back {found}: it ignores what it is told");
    Err(client.refused(FailureClass::Hardware, &why))
}

/// What a successful change reads back as.
fn expected(boot: Option<BootOverride>, quirks: Quirks) -> Option<BootOverride> {
    let boot = boot?;
    if !quirks.boot_device_only {
        return Some(boot);
    }
    let mode = if quirks.http_reads_as_pxe && boot.mode == BootMode::Http { BootMode::Pxe } else { boot.mode };
    (mode != BootMode::Disk).then_some(BootOverride { mode, persistent: true })
}

/// An override is set that we have no word for.
fn is_foreign(system: &Value) -> bool {
    let target = json::text(system, "/Boot/BootSourceOverrideTarget");
    let on = matches!(json::text(system, "/Boot/BootSourceOverrideEnabled").as_str(), "Once" | "Continuous");
    on && !matches!(target.as_str(), "" | "None") && mode(&target).is_none()
}

fn change(client: &Client, system: &Value, boot: Option<BootOverride>, quirks: Quirks) -> ProviderResult<Value> {
    let Some(boot) = boot else {
        return Ok(match quirks.boot_device_only {
            true => json!({"BootSourceOverrideTarget": "Hdd", "BootSourceOverrideEnabled": "Continuous"}),
            false => json!({"BootSourceOverrideTarget": "None", "BootSourceOverrideEnabled": "Disabled"}),
        });
    };
    let allowed = json::words(system, ALLOWED);
    let offered = |word: &&&str| allowed.is_empty() || allowed.iter().any(|a| a == **word);
    let mut words = words(boot.mode).to_vec();
    if quirks.cd_is_usb_cd && boot.mode == BootMode::Cd {
        words.reverse();
    }
    let Some(word) = words.iter().find(offered) else {
        return Err(client.lacks(&format!("boot mode {}; it allows {}", boot.mode, allowed.join(", "))));
    };
    let enabled = if boot.persistent { "Continuous" } else { "Once" };
    let mut change = json!({"BootSourceOverrideTarget": word, "BootSourceOverrideEnabled": enabled});
    let for_mode = json::text(system, "/Boot/BootSourceOverrideMode");
    if !for_mode.is_empty() && (boot.mode == BootMode::Http || quirks.wants_boot_mode) {
        let for_mode = if boot.mode == BootMode::Http { "UEFI".to_owned() } else { for_mode };
        change["BootSourceOverrideMode"] = for_mode.into();
    }
    Ok(change)
}

fn spoken(boot: Option<BootOverride>) -> String {
    match boot {
        None => "none".to_owned(),
        Some(boot) => format!("{} {}", boot.mode, if boot.persistent { "for all boots" } else { "once" }),
    }
}

fn as_read(system: &Value) -> String {
    let target = json::text(system, "/Boot/BootSourceOverrideTarget");
    let enabled = json::text(system, "/Boot/BootSourceOverrideEnabled");
    format!("target {target:?}, enabled {enabled:?}")
}
