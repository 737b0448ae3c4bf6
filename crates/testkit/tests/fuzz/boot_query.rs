//! What a machine says of itself when it asks what to boot: the raw query, through both ports.
//!
//! Promised: the answer is a script that iPXE reads as the commands that we write, and as nothing else, whatever was
//! claimed; it is read here as iPXE reads it (words between blanks, `||`, `&&` and `;` between commands, `$` for its
//! settings, `#` for the rest of a line). What is kept of the claims is short and printable, and what was sent.

use crate::boot_site::{BootSite, URL};
use crate::wire::of_rest;
use domain::boot_node::{BootNode, BootState};
use testkit::fuzz::{Fuzz, Verdict};

/// To be installed by a workflow whose command line has all of its claims.
const PENDING: &str = "52:54:00:00:00:01";
/// Of a claim, in characters.
const CLAIM_MAX: usize = 128;
/// More than any request may have in its head.
const LONG: usize = 100_000;

const SEEDS: &[&str] = &[
    "0mac=52:54:00:00:00:01&serial=S-1&hostname=web-1&vendor=Acme&product=Box%201&uuid=4D570000-0001-4002-8000-5254004d5800&arch=x86_64",
    "1mac=52:54:00:00:00:01&serial=%26%26&vendor=chain&product=http://evil/x&hostname=%7C%7C",
    "0mac=52:54:00:00:00:01&serial=${net0/mac}%0Aexit%0Dshell&hostname=x%20init=/bin/sh",
    "1mac=52:54:00:00:00:01&hostname=%C3%28%FF%00%1b[31m&serial=%+1%zz%&product=+",
    "0mac=52:54:00:00:00:01&serial=;&vendor=%23&hostname=a;b",
    "1mac=52-54-00-00-00-02&hostname=x%0Aimgfree%0Akernel%20http%3A%2F%2Fevil%2Fk",
    "0mac=5254.0000.0003&polls=4294967296&polls=3",
    "1mac=52:54:00:00:00:04&polls=180&arch=arm64",
    "0mac=52:54:00:00:00:01&serial=LONG",
    "1mac=52:54:00:00:00:01&hostname=LONG",
    "0mac=ff:ff:ff:ff:ff:ff",
    "1mac=LONG",
    "0",
    "1&&&=&mac&mac=52:54:00:00:00:05&mac=52:54:00:00:00:01",
    "0mac=%35%32:54:00:00:00:01&ser%69al=x&uuid=00000000-0000-0000-0000-000000000000",
];

const WORDS: &[&str] = &[
    "mac=",
    "&serial=",
    "&hostname=",
    "&vendor=",
    "&product=",
    "&uuid=",
    "&arch=",
    "&polls=",
    PENDING,
    "LONG",
    "%0A",
    "%0D",
    "%00",
    "%20",
    "%24%7Bmac%7D",
    "${mac}",
    "%26%26",
    "%7C%7C",
    ";",
    "%3B",
    "%23",
    "%FF",
    "%E2%80%A8",
    "%EF%BF%BE",
    "init=/bin/sh",
    "kernel",
    "chain",
    "exit",
    "#!ipxe",
    "arm64",
];

#[test]
fn boot_query() {
    Fuzz::new("boot_query", module_path!()).seeds(SEEDS.iter().map(|s| s.as_bytes())).words(WORDS).inputs(2_500).run(
        || {
            let site = BootSite::new();
            site.approved(PENDING);
            move |input| {
                let (port, query) = input.split_first().unwrap_or((&0, &[]));
                let query = replaced(query, b"LONG", &vec![b'x'; LONG]);
                let request =
                    [&b"GET /api/v1/boot?"[..], &query, b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"].concat();
                let Some(answer) = site.answer(usize::from(*port & 1), &request)? else {
                    return Ok("cut off".to_owned());
                };
                match answer.status {
                    200 => {}
                    400 | 414 | 431 => return of_rest(&answer).map(|(_, shape)| shape),
                    other => return Err(format!("answered by {other}: {:?}", String::from_utf8_lossy(&answer.body))),
                }
                let text = String::from_utf8(answer.body).map_err(|e| e.to_string())?;
                let claimed = Claimed::read(&query);
                let node =
                    claimed.mac.as_deref().and_then(|mac| site.runtime.block_on(site.service.get_boot_node(mac)).ok());
                if let Some(node) = &node {
                    claimed.judge(node)?;
                }
                script(&text, node.as_ref())
            }
        },
    );
}

pub fn replaced(text: &[u8], word: &[u8], with: &[u8]) -> Vec<u8> {
    let mut left = text;
    let mut out = Vec::new();
    // a few are enough: an input of nothing else would be another kind of large
    for _ in 0..4 {
        let Some(at) = left.windows(word.len()).position(|w| w == word) else { break };
        out.extend(&left[..at]);
        out.extend(with);
        left = &left[at + word.len()..];
    }
    out.extend(left);
    out
}

/// A query by a reading of its own. `None` where the request line does not say where the query ends.
struct Claimed {
    mac: Option<String>,
    values: Vec<(String, String)>,
}

impl Claimed {
    fn read(query: &[u8]) -> Self {
        let query = query.split(|b| *b == b'#').next().unwrap_or_default();
        let mut values: Vec<(String, String)> = Vec::new();
        for pair in query.split(|b| *b == b'&').filter(|pair| !pair.is_empty()).take(32) {
            let at = pair.iter().position(|b| *b == b'=').unwrap_or(pair.len());
            let name = String::from_utf8_lossy(&pair[..at]).into_owned();
            let value = decoded(pair.get(at + 1..).unwrap_or_default());
            if !values.iter().any(|(n, _)| *n == name) {
                values.push((name, value));
            }
        }
        let mac = values.iter().find(|(name, _)| name == "mac").map(|(_, mac)| mac.clone());
        let plain = query.iter().all(|b| *b > b' ' && *b != 0x7f);
        Self { mac: mac.filter(|_| plain), values }
    }

    fn judge(&self, node: &BootNode) -> Result<(), String> {
        let c = &node.claims;
        for (name, kept) in [
            ("hostname", &c.hostname),
            ("vendor", &c.vendor),
            ("product", &c.model),
            ("serial", &c.serial_number),
            ("uuid", &c.system_uuid),
            ("arch", &c.arch),
            ("", &c.ip_address),
        ] {
            if kept.chars().count() > CLAIM_MAX || kept.chars().any(char::is_control) {
                return Err(format!("kept as {name}: {kept:?}"));
            }
            let Some((_, said)) = self.values.iter().find(|(n, _)| !n.is_empty() && n == name) else { continue };
            let mut said: String = said.chars().filter(|c| !c.is_control()).take(CLAIM_MAX).collect();
            if name == "uuid" {
                said.make_ascii_lowercase();
            }
            // what says nothing leaves what was known, and who an approved machine is does not change by what is said
            let free = node.state == BootState::Discovered;
            if free && !said.trim().is_empty() && kept != said.trim() {
                return Err(format!("{name} was said to be {said:?} and is kept as {kept:?}"));
            }
        }
        Ok(())
    }
}

fn decoded(value: &[u8]) -> String {
    let digit = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16));
    let (mut bytes, mut at) = (Vec::new(), 0);
    while let Some(byte) = value.get(at) {
        match (byte, digit(value.get(at + 1)), digit(value.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// To the next boot device, by BIOS and by UEFI.
const TO_DISK: &str = "iseq ${platform} efi && exit 1 || exit";

/// The commands of a line, as iPXE takes it apart; `None`: something between them that we never write.
fn commands(line: &str) -> Option<Vec<Vec<&str>>> {
    let mut commands = vec![Vec::new()];
    for word in line.split_whitespace().take_while(|word| !word.starts_with('#')) {
        match word {
            "||" => commands.push(Vec::new()),
            "&&" | ";" => return None,
            word => commands.last_mut()?.push(word),
        }
    }
    Some(commands)
}

/// Every line is one of ours, with nothing of the claims but as values of the options that our workflow has for them.
fn script(text: &str, node: Option<&BootNode>) -> Verdict {
    let wrong = |why: &str| Err(format!("{why}:\n{text}"));
    // the one line of every script with a setting in it, and with a condition
    let (text, to_disk) = (text.replace(TO_DISK, "exit"), text.matches(TO_DISK).count());
    if to_disk != 1 {
        return wrong("not one way to the disk");
    }
    if !text.bytes().all(|b| b.is_ascii_graphic() || b == b' ' || b == b'\n') || text.contains('$') {
        return wrong("not plain text, or with a setting of iPXE in it");
    }
    let Some(lines) = text.strip_prefix("#!ipxe\n").filter(|lines| lines.ends_with('\n')) else {
        return wrong("not a script");
    };
    let mac = node.map(|node| node.mac.to_string()).unwrap_or_default();
    let mut shape = Vec::new();
    for line in lines.lines() {
        let Some(commands) = commands(line) else { return wrong("a separator that we do not write") };
        let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
        let known = match commands.as_slice() {
            [["echo", "Millwright:", ..] | ["exit"] | ["sleep", "10"] | [":failed"]] => true,
            [["boot"], ["goto", "failed"]] => true,
            [["chain", "--replace", url], []] => {
                let polls = url.strip_prefix(&format!("{URL}/api/v1/boot?mac={mac}&polls="));
                polls.is_some_and(|polls| polls.parse::<u32>().is_ok_and(|polls| (1..=180).contains(&polls)))
            }
            [["kernel", url, words @ ..], ["goto", "failed"]] => {
                *url == format!("{URL}/images/vmlinuz") && node.is_some_and(|node| options(words, node))
            }
            [["initrd", "--name", "initrd.img", url], ["goto", "failed"]] => *url == format!("{URL}/images/initrd"),
            _ => false,
        };
        if !known {
            return wrong(&format!("not a line of ours: {line:?}"));
        }
        shape.push(commands[0].first().copied().unwrap_or_default());
    }
    let said = lines.lines().next().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).take(60);
    Ok(format!("{} {}", shape.join(" "), if shape.contains(&"kernel") { String::new() } else { said.collect() }))
}

/// Whether these are the options of our workflow, in its order, and no more.
fn options(words: &[&str], node: &BootNode) -> bool {
    let (c, mac) = (&node.claims, node.mac.as_str());
    let machine = node.machine_id.as_ref().map(ToString::to_string).unwrap_or_default();
    let hostname = if c.hostname.is_empty() { &machine } else { &c.hostname };
    let expected = [
        "initrd=initrd.img".to_owned(),
        "quiet".to_owned(),
        format!("host={hostname}"),
        format!("serial={}", c.serial_number),
        format!("vendor={}", c.vendor),
        format!("model={}", c.model),
        format!("uuid={}", c.system_uuid),
        format!("arch={}", c.arch),
        format!("millwright.url={URL}"),
        "millwright.token".to_owned(),
        format!("millwright.mac={mac}"),
        format!("BOOTIF=01-{}", mac.replace(':', "-")),
    ];
    let plain = |token: &str| token.bytes().all(|b| b.is_ascii_hexdigit() || b == b'.');
    let same = |word: &str, expected: &str| match expected {
        "millwright.token" => word.strip_prefix("millwright.token=mwr_").is_some_and(plain),
        expected => word == expected,
    };
    words.len() == expected.len() && words.iter().zip(&expected).all(|(word, expected)| same(word, expected))
}
