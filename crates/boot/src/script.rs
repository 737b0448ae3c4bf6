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

/// The image that an order writes: the workflow's, or the one that is to be in its place. None: all of it is empty.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub url: String,
    pub sha256: String,
    /// 0: it is elsewhere, and whoever fetches it is told there.
    pub bytes: u64,
    pub packed: bool,
}

/// The firmware goes on to its disk. UEFI does only after a failure: after success it is content, and stays in its menu.
const TO_DISK: &str = "iseq ${platform} efi && exit 1 || exit\n";

/// Between two questions of a machine that waits.
const ASK_EVERY_SECONDS: u32 = 10;
/// After so many questions of one that waits it goes on to its disk.
pub const POLLS_MAX: u32 = 180;
/// And after so many that nobody has answered.
pub const TRIES_MAX: u32 = 30;

/// What is said on a console: letters, digits and a few marks, so that no word of it is a command.
fn said(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || " .,:()/_-%".contains(c);
    text.chars().map(|c| if plain(c) { c } else { '_' }).take(200).collect()
}

/// For firmware that was given our iPXE: fills in what the machine knows of itself. Asks until it is answered, `tries`
/// among them, but not for ever: then the machine boots its disk.
pub fn first(places: &Places, tries: u32) -> String {
    let asks = [
        ("mac", "netX/mac"),
        ("uuid", "uuid"),
        ("serial", "serial:uristring"),
        ("vendor", "manufacturer:uristring"),
        ("product", "product:uristring"),
        ("arch", "arch"),
        ("platform", "platform"),
        ("tries", "tries"),
    ];
    let query: Vec<String> = asks.iter().map(|(name, value)| format!("{name}=${{{value}}}")).collect();
    let (url, query) = (&places.public_url, query.join("&"));
    // the last try has the number before the last
    let tries = tries.min(TRIES_MAX - 1);
    // what iPXE was built for is not what the processor can do: for BIOS it is always i386
    format!(
        "#!ipxe
cpuid --ext 29 && set arch x86_64 || set arch ${{buildarch}}
set tries:int32 {tries}
:ask
chain --replace {url}/api/v1/boot?{query} ||
inc tries
iseq ${{tries}} {TRIES_MAX} && goto disk ||
echo Millwright does not answer
sleep {ASK_EVERY_SECONDS}
goto ask
:disk
echo Millwright does not answer; booting from disk
{TO_DISK}"
    )
}

/// For one of which nothing could be decided, since what is known cannot be had now: it asks all over again.
pub(crate) fn undecided(places: &Places, why: &str, tries: u32) -> String {
    let tries = tries + 1;
    if tries >= TRIES_MAX {
        return disk(why);
    }
    let (url, why) = (&places.public_url, said(why));
    format!(
        "#!ipxe\necho Millwright: {why}\nsleep {ASK_EVERY_SECONDS}\nchain --replace {url}/boot.ipxe?tries={tries} ||\n{TO_DISK}"
    )
}

fn source(places: &Places, source: &str) -> String {
    if is_url(source) { source.to_owned() } else { format!("{}/images/{source}", places.public_url) }
}

pub(crate) fn disk(why: &str) -> String {
    // the reason ends its line: what follows it could be read as a command
    format!("#!ipxe\necho Millwright: {}\necho Millwright: booting from disk\n{TO_DISK}", said(why))
}

/// What ends a script: it asks again after a while, and at last goes on to the disk.
fn then(places: &Places, node: &BootNode, polls: u32) -> String {
    if polls >= POLLS_MAX {
        return format!("echo Millwright: booting from disk\n{TO_DISK}");
    }
    let (url, mac, polls) = (&places.public_url, &node.mac, polls + 1);
    format!("sleep {ASK_EVERY_SECONDS}\nchain --replace {url}/api/v1/boot?mac={mac}&polls={polls} ||\n{TO_DISK}")
}

/// Says something, and asks again.
fn ask_again(places: &Places, node: &BootNode, why: &str, polls: u32) -> String {
    format!("#!ipxe\necho Millwright: {}\n{}", said(why), then(places, node, polls))
}

/// A kernel and its initrd; where they cannot be had, that is said and asked again.
fn boots(places: &Places, node: &BootNode, kernel: &str, initrd: &str, cmdline: &str, polls: u32) -> String {
    let mut script = format!("#!ipxe\necho Millwright: boot node {} ({})\n", node.id, node.mac);
    let (kernel, cmdline) = (source(places, kernel), cmdline.trim());
    let with = if initrd.is_empty() { "" } else { " initrd=initrd.img" };
    let _ = writeln!(script, "kernel {kernel}{with} {cmdline} || goto failed");
    if !initrd.is_empty() {
        let _ = writeln!(script, "initrd --name initrd.img {} || goto failed", source(places, initrd));
    }
    script.push_str("boot || goto failed\n:failed\necho Millwright: the installer could not be loaded\n");
    script.push_str(&then(places, node, polls));
    script
}

/// What every kernel of ours is told: who it is.
fn told(node: &BootNode) -> String {
    format!("millwright.mac={} BOOTIF=01-{}", node.mac, node.mac.as_str().replace(':', "-"))
}

/// The values of a workflow's variables.
pub fn values(places: &Places, node: &BootNode, token: &str, image: &Wanted) -> BTreeMap<&'static str, String> {
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
        ("image_url", image.url.clone()),
        ("image_sha256", image.sha256.clone()),
    ])
}

/// The script for what was decided. `polls` counts how often this boot has asked.
pub fn script(
    places: &Places,
    node: &BootNode,
    serve: &Serve,
    workflow: Option<(&BootWorkflow, &Wanted)>,
    token: Option<&str>,
    polls: u32,
) -> String {
    match serve {
        Serve::LocalDisk { why } => disk(why),
        Serve::Wait { why } | Serve::Error { why } => ask_again(places, node, why, polls),
        Serve::AttemptLost => ask_again(places, node, "its attempt has ended", polls),
        Serve::Discover => {
            let cmdline =
                format!("{} millwright.discover={} {}", places.installer_cmdline, places.public_url, told(node));
            boots(places, node, &places.installer_kernel, &places.installer_initrd, &cmdline, polls)
        }
        Serve::Installer { .. } => {
            let token = token.unwrap_or_default();
            match installer(places, node, workflow, token, polls) {
                Ok(script) => script,
                Err(e) => ask_again(places, node, &e.message, polls),
            }
        }
    }
}

fn installer(
    places: &Places,
    node: &BootNode,
    workflow: Option<(&BootWorkflow, &Wanted)>,
    token: &str,
    polls: u32,
) -> Result<String, Error> {
    let tells = format!("millwright.url={} millwright.token={token} {}", places.public_url, told(node));
    let Some((workflow, image)) = workflow else {
        // an erasure: nothing but our own installer does that
        let cmdline = format!("{} {tells}", places.installer_cmdline);
        return Ok(boots(places, node, &places.installer_kernel, &places.installer_initrd, &cmdline, polls));
    };
    let values = values(places, node, token, image);
    let cmdline = workflow.rendered_cmdline(&values)?;
    Ok(boots(places, node, &workflow.kernel, &workflow.initrd, &format!("{cmdline} {tells}"), polls))
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::{BootNodeId, MacAddress, Timestamp};

    fn places() -> Places {
        Places {
            public_url: "http://10.77.0.1:7702".into(),
            installer_cmdline: "console=ttyS0".into(),
            installer_kernel: "installer-vmlinuz".into(),
            installer_initrd: "installer-initrd".into(),
        }
    }

    fn node() -> BootNode {
        let (id, mac) = (BootNodeId::from_text("btn_1"), MacAddress::from_text("52:54:00:4d:59:01"));
        BootNode::new(id, mac, Timestamp::from_micros(0))
    }

    /// What a script asks next, if it does not end at the disk: the number behind `name`.
    fn asks_next(script: &str, name: &str) -> Option<u32> {
        let asks = script.lines().find(|line| line.starts_with("chain ") && line.ends_with(" ||"))?;
        let number = asks.split([' ', '&', '?']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        Some(number.and_then(|number| number.parse().ok()).expect("a number in what is asked"))
    }

    #[test]
    fn every_way_of_asking_again_ends_at_the_disk() {
        let serves =
            [Serve::Discover, Serve::Wait { why: "w".into() }, Serve::Error { why: "e".into() }, Serve::AttemptLost];
        let installs = [Serve::Installer { task: domain::install_order::OrderTask::Erase, attempt: 1 }];
        for serve in serves.into_iter().chain(installs) {
            let asked = (0..).scan(0, |polls, _| {
                *polls = asks_next(&script(&places(), &node(), &serve, None, Some("t"), *polls), "polls")?;
                Some(*polls)
            });
            assert_eq!(asked.take(1000).last(), Some(POLLS_MAX), "{serve:?}");
            let last = script(&places(), &node(), &serve, None, Some("t"), POLLS_MAX);
            assert!(last.ends_with(TO_DISK) && !last.contains("chain"), "{last}");
        }
        let asked = (0..).scan(0, |tries, _| {
            *tries = asks_next(&undecided(&places(), "the database is away", *tries), "tries")?;
            Some(*tries)
        });
        assert_eq!(asked.take(1000).last(), Some(TRIES_MAX - 1));
    }
}
