//! The scripts that iPXE runs: a pure function from what is decided to a text. Nothing that a machine says of itself
//! gets into one as it came.

use domain::boot_decision::Serve;
use domain::boot_node::BootNode;
use domain::boot_workflow::{BootWorkflow, is_url};
use domain::error::Error;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Where things are fetched from, and what our own installer is called in the image store.
#[derive(Clone, Debug)]
pub struct Places {
    /// As machines reach us, without a slash at its end.
    pub public_url: String,
    pub installer_kernel: String,
    pub installer_initrd: String,
    /// What its kernel is told where no workflow says so: for a look at a stranger, and for an erasure.
    pub installer_cmdline: String,
}

/// Between two questions of a machine that waits.
const ASK_EVERY_SECONDS: u32 = 10;
/// After so many questions it goes on to its disk.
pub const POLLS_MAX: u32 = 180;

/// What is said on a console: letters, digits and a few marks, so that no word of it is a command.
fn said(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || " .,:()/_-%".contains(c);
    text.chars().map(|c| if plain(c) { c } else { '_' }).take(200).collect()
}

/// For firmware that was given our iPXE: fills in what the machine knows of itself.
pub fn first(places: &Places) -> String {
    let asks = [
        ("mac", "netX/mac"),
        ("uuid", "uuid"),
        ("serial", "serial:uristring"),
        ("vendor", "manufacturer:uristring"),
        ("product", "product:uristring"),
        ("arch", "buildarch"),
    ];
    let query: Vec<String> = asks.iter().map(|(name, value)| format!("{name}=${{{value}}}")).collect();
    format!(
        "#!ipxe\n:ask\nchain --replace {}/api/v1/boot?{} || goto again\n:again\necho Millwright does not answer\nsleep 10\ngoto ask\n",
        places.public_url,
        query.join("&")
    )
}

fn source(places: &Places, source: &str) -> String {
    if is_url(source) { source.to_owned() } else { format!("{}/images/{source}", places.public_url) }
}

fn again(places: &Places, node: &BootNode, polls: u32) -> String {
    format!("chain --replace {}/api/v1/boot?mac={}&polls={}", places.public_url, node.mac, polls + 1)
}

pub(crate) fn disk(why: &str) -> String {
    format!("#!ipxe\necho Millwright: {}; booting from disk\nexit\n", said(why))
}

/// Says something, and asks again after a while.
fn ask_again(places: &Places, node: &BootNode, why: &str, polls: u32) -> String {
    if polls >= POLLS_MAX {
        return disk(why);
    }
    let ask = again(places, node, polls);
    let why = said(why);
    format!("#!ipxe\necho Millwright: {why}\nsleep {ASK_EVERY_SECONDS}\n{ask} || exit\n")
}

/// A kernel and its initrd; where they cannot be had, that is said and asked again.
fn boots(places: &Places, node: &BootNode, kernel: &str, initrd: &str, cmdline: &str) -> String {
    let mut script = format!("#!ipxe\necho Millwright: boot node {} ({})\n", node.id, node.mac);
    let (kernel, cmdline) = (source(places, kernel), cmdline.trim());
    let with = if initrd.is_empty() { "" } else { " initrd=initrd.img" };
    let _ = writeln!(script, "kernel {kernel}{with} {cmdline} || goto failed");
    if !initrd.is_empty() {
        let _ = writeln!(script, "initrd --name initrd.img {} || goto failed", source(places, initrd));
    }
    let ask = again(places, node, 0);
    let _ = write!(
        script,
        "boot || goto failed\n:failed\necho Millwright: the installer could not be loaded\nsleep {ASK_EVERY_SECONDS}\n{ask} || exit\n"
    );
    script
}

/// What every kernel of ours is told: who it is and where we are.
fn told(places: &Places, node: &BootNode) -> String {
    let dashed = node.mac.as_str().replace(':', "-");
    format!("millwright.url={} millwright.mac={} BOOTIF=01-{dashed}", places.public_url, node.mac)
}

/// The values of a workflow's variables.
pub fn values(
    places: &Places,
    node: &BootNode,
    workflow: &BootWorkflow,
    token: &str,
    image: &str,
) -> BTreeMap<&'static str, String> {
    let c = &node.claims;
    let machine = node.machine_id.as_ref().map(ToString::to_string).unwrap_or_default();
    let hostname = if c.hostname.is_empty() { machine.clone() } else { c.hostname.clone() };
    let url = &places.public_url;
    BTreeMap::from([
        ("node_id", node.id.to_string()),
        ("mac", node.mac.to_string()),
        ("ip", c.ip_address.clone()),
        ("hostname", hostname),
        ("serial", c.serial_number.clone()),
        ("uuid", c.system_uuid.clone()),
        ("vendor", c.vendor.clone()),
        ("model", c.model.clone()),
        ("arch", c.arch.clone()),
        ("machine_id", machine),
        ("url", url.clone()),
        ("token", token.to_owned()),
        ("answers_url", format!("{url}/api/v1/boot/answers?token={token}")),
        ("image_url", if image.is_empty() { String::new() } else { source(places, image) }),
        ("image_sha256", workflow.image_sha256.clone()),
    ])
}

/// The script for what was decided. `polls` counts how often this boot has asked.
pub fn script(
    places: &Places,
    node: &BootNode,
    serve: &Serve,
    workflow: Option<&BootWorkflow>,
    token: Option<&str>,
    polls: u32,
) -> String {
    match serve {
        Serve::LocalDisk { why } => disk(why),
        Serve::Wait { why } | Serve::Error { why } => ask_again(places, node, why, polls),
        Serve::AttemptLost => ask_again(places, node, "its attempt has ended", polls),
        Serve::Discover => {
            let cmdline = format!("{} {} millwright.discover=1", places.installer_cmdline, told(places, node));
            boots(places, node, &places.installer_kernel, &places.installer_initrd, &cmdline)
        }
        Serve::Installer { .. } => {
            let token = token.unwrap_or_default();
            match installer(places, node, workflow, token) {
                Ok(script) => script,
                Err(e) => ask_again(places, node, &e.message, polls),
            }
        }
    }
}

fn installer(places: &Places, node: &BootNode, workflow: Option<&BootWorkflow>, token: &str) -> Result<String, Error> {
    let tells = format!("{} millwright.token={token}", told(places, node));
    let Some(workflow) = workflow else {
        // an erasure: nothing but our own installer does that
        let cmdline = format!("{} {tells}", places.installer_cmdline);
        return Ok(boots(places, node, &places.installer_kernel, &places.installer_initrd, &cmdline));
    };
    let image = node.open_order().map(|order| order.image.as_str()).filter(|image| !image.is_empty());
    let values = values(places, node, workflow, token, image.unwrap_or(&workflow.image));
    let cmdline = workflow.rendered_cmdline(&values)?;
    Ok(boots(places, node, &workflow.kernel, &workflow.initrd, &format!("{cmdline} {tells}")))
}
