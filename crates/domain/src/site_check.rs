//! What a site may be told: every field judged before it is kept, so that nothing of it can mean anything else further
//! on: in a URL, in a form, in a template or on a screen.

use crate::error::Error;
use crate::id::check_name;
use crate::limits;
use crate::machine::check_text;
use crate::site::{DiskRule, LinkMode, PROFILES_MAX, Profile, RoceNetwork, Site, SitePolicy};
use std::time::Duration;

/// What stands in a cloud-init template.
pub const PLACEHOLDERS: [&str; 8] =
    ["hostname", "node_id", "node_name", "site", "bundle_base64", "install_script_base64", "agent_url", "agent_sha256"];

/// The first line by which cloud-init knows what it is given.
pub const TEMPLATE_HEAD: &str = "#cloud-config";

const TAGS_MAX: usize = 32;
const ROCE_MAX: usize = 32;
const SCRIPTS_MAX: usize = 32;
/// Bytes of all profiles together: a site is shown in one answer.
const PROFILES_BYTES_MAX: usize = 512 * 1024;

const POLL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));
const LIST: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(24 * 3600));
const CALLS_MAX: u32 = 64;
const RETRIES_MAX: u32 = 10;
const SYNC_INTERVALS_MAX: u32 = 100;

impl Site {
    /// Whether it can be one. What its certificates are is for whoever can read them.
    pub fn check(&self) -> Result<(), Error> {
        check_name("name", &self.name)?;
        check_maas_url("url", &self.url)?;
        if self.ca_pem.len() > limits::CERTIFICATES_MAX {
            let most = limits::CERTIFICATES_MAX;
            return Err(Error::field("ca_pem", format!("has {} bytes, at most {most} are allowed", self.ca_pem.len())));
        }
        if !self.ca_pem.is_empty() && self.url.starts_with("http://") {
            return Err(Error::field("ca_pem", "certificates are of no use to a url that begins with http://"));
        }
        check_name("credentials_ref", &self.credentials_ref)?;
        check_policy(&self.policy)?;
        check_profiles(&self.profiles)
    }
}

/// `http(s)://HOST[:PORT]/…/MAAS`, with nothing secret and nothing that is not a plain path.
fn check_maas_url(field: &str, url: &str) -> Result<(), Error> {
    check_text(field, url, limits::TEXT_MAX)?;
    let wrong = |why: &str| Err(Error::field(field, format!("{why}; such as https://maas.example:5443/MAAS")));
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else {
        return wrong("must begin with https:// or http://");
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.contains('@') {
        return wrong("must not name a user or a password: the API key is a credential of kind maas");
    }
    if !is_host(host) {
        return wrong("has no plain HOST or HOST:PORT");
    }
    if path.ends_with('/') || !format!("/{path}").ends_with("/MAAS") {
        return wrong("must end with /MAAS");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    if !path.chars().all(plain) || path.split('/').any(|part| part.is_empty() || part == "..") {
        return wrong("has a path that is more than plain words");
    }
    Ok(())
}

/// A name, an IPv4 address or an IPv6 address in brackets, perhaps with a port.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, after)) if address.parse::<std::net::Ipv6Addr>().is_ok() => ("v6", after),
            Some(_) | None => return false,
        },
        None => match text.find(':') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        },
    };
    let good_port = match port.strip_prefix(':') {
        Some(number) => number.parse::<u16>().is_ok_and(|n| n > 0) && number.bytes().all(|b| b.is_ascii_digit()),
        None => port.is_empty(),
    };
    let label = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
            && !part.starts_with('-')
    };
    good_port && host.len() <= 253 && host.split('.').all(label)
}

fn within(field: &str, value: Duration, (least, most): (Duration, Duration)) -> Result<(), Error> {
    if value < least || value > most {
        let problem = format!("is {} s; use {} to {}", value.as_secs_f64(), least.as_secs(), most.as_secs());
        return Err(Error::field(field, problem));
    }
    Ok(())
}

fn check_policy(policy: &SitePolicy) -> Result<(), Error> {
    within("policy.poll_seconds", policy.poll, POLL)?;
    within("policy.list_seconds", policy.list, LIST)?;
    if policy.list < policy.poll {
        return Err(Error::field("policy.list_seconds", "must not be less than poll_seconds"));
    }
    for (field, value, least, most) in [
        ("policy.calls_max", policy.calls_max, 1, CALLS_MAX),
        ("policy.datasource_retries", policy.datasource_retries, 0, RETRIES_MAX),
        ("policy.sync_intervals", policy.sync_intervals, 1, SYNC_INTERVALS_MAX),
    ] {
        if value < least || value > most {
            return Err(Error::field(field, format!("is {value}; use {least} to {most}")));
        }
    }
    Ok(())
}

fn check_profiles(profiles: &[Profile]) -> Result<(), Error> {
    if profiles.is_empty() || profiles.len() > PROFILES_MAX {
        let problem = format!("has {}; a site has 1 to {PROFILES_MAX} profiles", profiles.len());
        return Err(Error::field("profiles", problem));
    }
    for (n, profile) in profiles.iter().enumerate() {
        check_profile(&format!("profiles[{n}]"), profile)?;
        if profiles.iter().take(n).any(|other| other.name == profile.name) {
            return Err(Error::field(&format!("profiles[{n}].name"), format!("{:?} stands twice", profile.name)));
        }
    }
    let bytes: usize = profiles.iter().map(|p| p.cloud_init.len()).sum();
    if bytes > PROFILES_BYTES_MAX {
        let problem = format!("their templates have {bytes} bytes together, at most {PROFILES_BYTES_MAX} are allowed");
        return Err(Error::field("profiles", problem));
    }
    Ok(())
}

fn check_profile(at: &str, p: &Profile) -> Result<(), Error> {
    let field = |name: &str| format!("{at}.{name}");
    check_name(&field("name"), &p.name)?;
    let architecture = p.architecture.split_once('/');
    if !architecture.is_some_and(|(a, b)| is_word(a) && is_word(b)) {
        return Err(Error::field(&field("architecture"), "is not ARCHITECTURE/SUBARCHITECTURE, such as amd64/generic"));
    }
    for (name, text) in [("kernel", &p.kernel), ("pool", &p.pool), ("zone", &p.zone)] {
        word(&field(name), text)?;
    }
    // `noble`, or `custom/NAME`
    let series: Vec<&str> = p.series.split('/').collect();
    if !p.series.is_empty() && (series.len() > 2 || !series.iter().all(|part| is_word(part))) {
        return Err(Error::field(&field("series"), "is not a series such as noble, ubuntu/noble or custom/NAME"));
    }
    if !is_size(&p.root_size) {
        return Err(Error::field(&field("root_size"), "is not a size such as 100G or 50%"));
    }
    check_disk(&field("boot_disk"), &p.boot_disk)?;
    check_subnet(&field("pxe_subnet"), &p.pxe_subnet)?;
    words(&field("tags"), &p.tags, TAGS_MAX)?;
    // MAAS itself takes no others
    if let Some(n) = p.tags.iter().position(|tag| tag.contains('.')) {
        return Err(Error::field(&field(&format!("tags[{n}]")), "is no tag of MAAS; use letters, digits, '_' and '-'"));
    }
    words(&field("testing_scripts"), &p.testing_scripts, SCRIPTS_MAX)?;
    if p.roce.len() > ROCE_MAX {
        return Err(Error::field(&field("roce"), format!("has {}, at most {ROCE_MAX} are allowed", p.roce.len())));
    }
    for (n, network) in p.roce.iter().enumerate() {
        check_roce(&field(&format!("roce[{n}]")), network)?;
    }
    check_agent(&field("agent_url"), &field("agent_sha256"), &p.agent_url, &p.agent_sha256)?;
    check_template(&p.cloud_init).map_err(|why| Error::field(&field("cloud_init"), why))
}

fn check_disk(at: &str, disk: &DiskRule) -> Result<(), Error> {
    check_text(&format!("{at}.model"), &disk.model, limits::NAME_MAX)?;
    word(&format!("{at}.tag"), &disk.tag)?;
    if disk.max_bytes > 0 && disk.max_bytes < disk.min_bytes {
        return Err(Error::field(&format!("{at}.max_bytes"), "is less than min_bytes"));
    }
    let most = i64::MAX.unsigned_abs();
    if disk.min_bytes > most || disk.max_bytes > most {
        return Err(Error::field(&format!("{at}.min_bytes"), "is more than any disk has"));
    }
    Ok(())
}

fn check_roce(at: &str, network: &RoceNetwork) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '*');
    let name = &network.interface;
    if name.is_empty() || name.len() > limits::NAME_MAX || !name.chars().all(plain) {
        return Err(Error::field(&format!("{at}.interface"), "is not the name of an interface; * stands for any rest"));
    }
    check_subnet(&format!("{at}.subnet"), &network.subnet)?;
    if network.subnet.is_empty() && network.mode != LinkMode::LinkUp {
        return Err(Error::field(&format!("{at}.subnet"), format!("is needed for mode {}", network.mode)));
    }
    // 0: as it is
    if network.mtu != 0 && !(552..=65_535).contains(&network.mtu) {
        return Err(Error::field(&format!("{at}.mtu"), format!("is {}; use 552 to 65535", network.mtu)));
    }
    Ok(())
}

/// A number, `cidr:…` or `name:…`; empty: none is named.
fn check_subnet(field: &str, text: &str) -> Result<(), Error> {
    check_text(field, text, limits::NAME_MAX * 2)?;
    let cidr = |cidr: &str| {
        let (address, bits) = cidr.split_once('/')?;
        let address: std::net::IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        bits.parse::<u8>().ok().filter(|bits| *bits <= most)
    };
    let good = text.is_empty()
        || (text.len() <= 10 && text.bytes().all(|b| b.is_ascii_digit()))
        || text.strip_prefix("cidr:").is_some_and(|rest| cidr(rest).is_some())
        || text.strip_prefix("name:").is_some_and(|rest| !rest.trim().is_empty());
    if good { Ok(()) } else { Err(Error::field(field, "is not a subnet: a number, cidr:10.0.0.0/24 or name:NAME")) }
}

/// Where an agent is fetched from, and what it must be; both, or neither.
pub fn check_agent(url_field: &str, digest_field: &str, url: &str, sha256: &str) -> Result<(), Error> {
    check_text(url_field, url, limits::TEXT_MAX)?;
    let wrong = |why: &str| Err(Error::field(url_field, why));
    if url.is_empty() {
        return match sha256.is_empty() {
            true => Ok(()),
            false => Err(Error::field(digest_field, "says what agent_url must be, and there is none")),
        };
    }
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else {
        return wrong("must begin with https:// or http://");
    };
    let host = rest.split('/').next().unwrap_or_default();
    let plain =
        |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '`' | '\\' | '<' | '>' | '{' | '}' | '|' | '^');
    if host.contains('@') || !is_host(host) || !rest.chars().all(plain) {
        return wrong("is not a plain URL without a user");
    }
    let digest = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if digest {
        return Ok(());
    }
    Err(Error::field(digest_field, "is needed beside agent_url: 64 hexadecimal digits in lower case"))
}

/// The names that a template asks for, in their order; or what is wrong with it.
pub fn placeholders(template: &str) -> Result<Vec<String>, String> {
    let (mut found, mut rest) = (Vec::new(), template);
    while let Some(at) = rest.find("{{") {
        let after = rest.get(at + 2..).unwrap_or_default();
        let end = after.find("}}").ok_or_else(|| "a {{ is never closed by }}".to_owned())?;
        let name = after.get(..end).unwrap_or_default().trim();
        if !PLACEHOLDERS.contains(&name) {
            let name: String = name.chars().take(limits::NAME_MAX).collect();
            return Err(format!("{{{{ {name:?} }}}} is unknown; there are {}", PLACEHOLDERS.join(", ")));
        }
        found.push(name.to_owned());
        rest = after.get(end + 2..).unwrap_or_default();
    }
    if rest.contains("}}") {
        return Err("a }} was never opened by {{".to_owned());
    }
    Ok(found)
}

/// Whether a template can be filled in. Its own words are the site's; an empty one means the product's.
pub fn check_template(template: &str) -> Result<(), String> {
    if template.is_empty() {
        return Ok(());
    }
    if template.len() > limits::USER_DATA_MAX {
        return Err(format!("has {} bytes, at most {} are allowed", template.len(), limits::USER_DATA_MAX));
    }
    if let Some(bad) = template.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
        return Err(format!("contains the control character {bad:?}"));
    }
    if template.lines().next().map(str::trim_end) != Some(TEMPLATE_HEAD) {
        return Err(format!("its first line is not {TEMPLATE_HEAD}"));
    }
    match placeholders(template)?.iter().any(|name| name == "bundle_base64") {
        true => Ok(()),
        false => Err("has no {{ bundle_base64 }}: no agent could enrol".to_owned()),
    }
}

fn is_word(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !text.is_empty() && text.len() <= limits::NAME_MAX && text.chars().all(plain)
}

/// Empty, or one plain word.
fn word(field: &str, text: &str) -> Result<(), Error> {
    if text.is_empty() || is_word(text) {
        return Ok(());
    }
    Err(Error::field(field, "is not a plain word; use letters, digits, '.', '_' and '-'"))
}

fn words(field: &str, all: &[String], most: usize) -> Result<(), Error> {
    if all.len() > most {
        return Err(Error::field(field, format!("has {}, at most {most} are allowed", all.len())));
    }
    for (n, text) in all.iter().enumerate() {
        if !is_word(text) {
            return Err(Error::field(
                &format!("{field}[{n}]"),
                "is not a plain word; use letters, digits, '.', '_' and '-'",
            ));
        }
    }
    Ok(())
}

/// Empty, bytes with a unit of a thousand, or a share.
fn is_size(text: &str) -> bool {
    let digits = text.trim_end_matches(['K', 'k', 'M', 'G', 'T', '%']);
    text.is_empty() || (text.len() - digits.len() <= 1 && digits.parse::<u64>().is_ok_and(|n| n > 0))
}

#[cfg(test)]
#[path = "site_check_tests.rs"]
mod tests;
