//! A boot workflow: what an installation boots and writes. Ours writes an image; a distribution's installer gets a
//! kernel, an initrd, a command line and the file of answers that its kind reads (autoinstall, preseed, kickstart).
//! Values of machines go into either by name, and never as they come: a hostname is nobody's command.

use crate::error::Error;
use crate::id::check_name;
use crate::limits::TEXT_MAX;
use crate::machine::check_text;
use crate::time::Timestamp;
use std::collections::BTreeMap;

pub const CMDLINE_MAX: usize = 2048;
pub const TEMPLATE_MAX: usize = 64 * 1024;

/// The variables of command lines and templates, and what each stands for.
pub const VARIABLES: &[(&str, &str)] = &[
    ("node_id", "the boot node's id"),
    ("mac", "the address of the card that it boots from"),
    ("ip", "its address, as far as it is known"),
    ("hostname", "its name, as it reported it or as its machine is called"),
    ("serial", "its serial number"),
    ("uuid", "its system UUID"),
    ("vendor", "who made it"),
    ("model", "what it is"),
    ("arch", "its architecture"),
    ("machine_id", "the machine that it is linked to"),
    ("url", "where this server is reached from there"),
    ("token", "the token of this attempt"),
    ("answers_url", "where the rendered template is fetched from, with the token in it"),
    ("image_url", "where the image is fetched from"),
    ("image_sha256", "what it must hash to"),
];

/// Of these, what a machine says of itself.
const CLAIMED: &[&str] = &["ip", "hostname", "serial", "uuid", "vendor", "model", "arch"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootWorkflow {
    pub id: String,
    pub name: String,
    /// URLs, or names in the image store.
    pub kernel: String,
    pub initrd: String,
    pub cmdline: String,
    /// Empty for a distribution's installer.
    pub image: String,
    pub image_sha256: String,
    /// `x86_64` or `arm64`; empty: any.
    pub arch: String,
    /// `bios` or `uefi`; empty: any.
    pub boot_mode: String,
    /// The file of answers.
    pub template: String,
    /// Which disk is written: `auto`, a path below /dev, or `serial:…`.
    pub disk: String,
    pub created_at: Timestamp,
    pub created_by: String,
}

/// How a value is written where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoting {
    /// As it is; only where nothing in it can be taken for anything else.
    Bare,
    /// In single quotes, for a shell.
    Shell,
    /// In double quotes, for YAML and JSON.
    Yaml,
}

/// A piece of a text with variables.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Variable(&'static str, Quoting),
}

/// `${name}`, `${name:shell}`, `${name:yaml}`; `$$` is a dollar.
fn pieces<'a>(field: &str, text: &'a str) -> Result<Vec<Piece<'a>>, Error> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, after) = rest.split_at(at);
        found.push(Piece::Text(before));
        rest = &after[1..];
        if let Some(more) = rest.strip_prefix('$') {
            found.push(Piece::Text("$"));
            rest = more;
            continue;
        }
        let Some((inside, more)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
            let usage = "a \"$\" begins a variable like ${mac}; write \"$$\" for the character itself";
            return Err(Error::field(field, usage));
        };
        rest = more;
        let (name, quoting) = match inside.split_once(':') {
            None => (inside, Quoting::Bare),
            Some((name, "shell")) => (name, Quoting::Shell),
            Some((name, "yaml")) => (name, Quoting::Yaml),
            Some((_, other)) => {
                return Err(Error::field(field, format!("{other:?} is no way to quote; use \"shell\" or \"yaml\"")));
            }
        };
        let known = VARIABLES.iter().map(|v| v.0);
        match known.clone().find(|known| *known == name) {
            Some(name) => found.push(Piece::Variable(name, quoting)),
            None => {
                let known: Vec<&str> = known.collect();
                let message = format!("the variable {name:?} is unknown; there are {}", known.join(", "));
                return Err(Error::field(field, message).allowing(known));
            }
        }
    }
    found.push(Piece::Text(rest));
    Ok(found)
}

/// The pieces of a kernel's command line, which iPXE reads first. Neither knows quotes as a shell does: what has to be
/// quoted would be several words. And a word is an option by its name, or to iPXE the end of a command: a machine's
/// claims begin none.
fn cmdline_pieces(cmdline: &str) -> Result<Vec<Piece<'_>>, Error> {
    let pieces = pieces("cmdline", cmdline)?;
    let mut begins_a_word = true;
    for piece in &pieces {
        match piece {
            Piece::Text(text) => {
                if let Some(last) = text.trim_end_matches('"').chars().last() {
                    begins_a_word = last.is_whitespace();
                }
            }
            Piece::Variable(name, Quoting::Shell | Quoting::Yaml) => {
                let message = format!("there are no quotes in a kernel's command line; write ${{{name}}}");
                return Err(Error::field("cmdline", message));
            }
            Piece::Variable(name, Quoting::Bare) if begins_a_word && CLAIMED.contains(name) => {
                let message = format!(
                    "${{{name}}} would be an option of the machine's own choice; put it behind a name, as in {name}=${{{name}}}"
                );
                return Err(Error::field("cmdline", message));
            }
            Piece::Variable(_, Quoting::Bare) => begins_a_word = false,
        }
    }
    Ok(pieces)
}

/// The variables whose values are ours and are URLs: they need what other values may not have.
const URLS: &[&str] = &["url", "answers_url", "image_url"];

/// One word to everything that reads it: a kernel, a shell, iPXE, YAML. Whatever a machine says of itself stands bare
/// only so: to a shell, `a&reboot` is two commands.
fn is_word(value: &str) -> bool {
    value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(&b))
}

/// What a URL is made of, and a path.
fn is_plain(value: &str) -> bool {
    value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:/@+,=?&%".contains(&b))
}

fn stands_bare(name: &str, value: &str) -> bool {
    is_word(value) || URLS.contains(&name) && is_plain(value)
}

/// In double quotes. Beyond ASCII there are characters that readers of YAML take for the end of a line, or do not take
/// at all; escaped, each is itself, in JSON as well. (Those that JSON would need two escapes for are fine as they are.)
fn double_quoted(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\u{80}'..='\u{ffff}' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn quoted(field: &str, name: &str, value: &str, quoting: Quoting) -> Result<String, Error> {
    if value.chars().any(char::is_control) {
        return Err(Error::field(field, format!("the value of ${{{name}}} has a control character in it: {value:?}")));
    }
    match quoting {
        Quoting::Bare if stands_bare(name, value) => Ok(value.to_owned()),
        Quoting::Bare => {
            // a command line has no other way
            let instead =
                if field == "cmdline" { String::new() } else { format!("; use ${{{name}:shell}} or ${{{name}:yaml}}") };
            let message = format!("the value of ${{{name}}} cannot stand there unquoted: {value:?}{instead}");
            Err(Error::field(field, message))
        }
        Quoting::Shell => Ok(format!("'{}'", value.replace('\'', "'\\''"))),
        Quoting::Yaml => Ok(double_quoted(value)),
    }
}

fn render(field: &str, pieces: Vec<Piece<'_>>, values: &BTreeMap<&'static str, String>) -> Result<String, Error> {
    let mut rendered = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => rendered.push_str(text),
            Piece::Variable(name, quoting) => {
                let value = values.get(name).map_or("", String::as_str);
                rendered.push_str(&quoted(field, name, value, quoting)?);
            }
        }
    }
    Ok(rendered)
}

/// A name in the image store, or an http URL that can stand in a script.
fn check_source(field: &str, text: &str) -> Result<(), Error> {
    if let Some(rest) = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
        if rest.is_empty() || !is_plain(rest) || text.len() > TEXT_MAX {
            return Err(Error::field(field, format!("{text:?} is not a URL that can stand in a boot script")));
        }
        return Ok(());
    }
    check_name(field, text)
}

/// Whether a text names what a machine fetches from elsewhere.
pub fn is_url(source: &str) -> bool {
    source.starts_with("http://") || source.starts_with("https://")
}

impl BootWorkflow {
    /// Judges one that a caller brings.
    pub fn checked(mut self) -> Result<Self, Error> {
        check_name("id", &self.id)?;
        check_text("name", &self.name, TEXT_MAX)?;
        check_source("kernel", &self.kernel)?;
        if !self.initrd.is_empty() {
            check_source("initrd", &self.initrd)?;
        }
        check_text("cmdline", &self.cmdline, CMDLINE_MAX)?;
        cmdline_pieces(&self.cmdline)?;
        if self.template.len() > TEMPLATE_MAX {
            return Err(Error::field("template", format!("has more than {TEMPLATE_MAX} bytes")));
        }
        pieces("template", &self.template)?;
        self.image_sha256 = self.image_sha256.to_ascii_lowercase();
        if self.image.is_empty() {
            if !self.image_sha256.is_empty() {
                return Err(Error::field("image_sha256", "there is no image that it could belong to"));
            }
        } else {
            if self.image.starts_with("https://") {
                let why = "the installer has no TLS that could be trusted; use http:// (its image_sha256 is what secures it), or add it to the image store";
                return Err(Error::field("image", format!("{:?}: {why}", self.image)));
            }
            check_source("image", &self.image)?;
            let digest = self.image_sha256.len() == 64 && self.image_sha256.bytes().all(|b| b.is_ascii_hexdigit());
            if !self.image_sha256.is_empty() && !digest {
                return Err(Error::field("image_sha256", "is not 64 hexadecimal digits"));
            }
            if is_url(&self.image) && self.image_sha256.is_empty() {
                return Err(Error::field(
                    "image_sha256",
                    "an image from elsewhere is only written if its digest is known",
                ));
            }
        }
        one_of("arch", &self.arch, &["", "x86_64", "arm64"])?;
        one_of("boot_mode", &self.boot_mode, &["", "bios", "uefi"])?;
        if self.disk.is_empty() {
            "auto".clone_into(&mut self.disk);
        }
        let path = self.disk.strip_prefix("/dev/").is_some_and(|rest| !rest.is_empty() && !rest.contains(".."));
        let serial = self.disk.strip_prefix("serial:").is_some_and(|rest| !rest.is_empty());
        if !is_plain(&self.disk) || self.disk.len() > TEXT_MAX || !(self.disk == "auto" || path || serial) {
            return Err(Error::field("disk", format!("{:?}: use auto, /dev/… or serial:…", self.disk)));
        }
        Ok(self)
    }

    pub fn rendered_cmdline(&self, values: &BTreeMap<&'static str, String>) -> Result<String, Error> {
        render("cmdline", cmdline_pieces(&self.cmdline)?, values)
    }

    pub fn rendered_template(&self, values: &BTreeMap<&'static str, String>) -> Result<String, Error> {
        render("template", pieces("template", &self.template)?, values)
    }

    /// Why it cannot be booted by a machine of this architecture that boots so; of what is not known nothing is said.
    pub fn unfit_for(&self, arch: &str, boot_mode: &str) -> Option<String> {
        let fits = |wanted: &str, is: &str| wanted.is_empty() || is.is_empty() || wanted == is;
        // iPXE for BIOS is built for i386, whatever the processor can do besides
        let may_be = self.arch == "x86_64" && arch == "i386";
        if !fits(&self.arch, arch) && !may_be {
            return Some(format!("workflow {} is for {}, and this machine is {arch}", self.id, self.arch));
        }
        let (id, wanted) = (&self.id, &self.boot_mode);
        (!fits(wanted, boot_mode))
            .then(|| format!("workflow {id} is for {wanted}, and this machine boots by {boot_mode}"))
    }
}

fn one_of(field: &str, text: &str, known: &[&'static str]) -> Result<(), Error> {
    if known.contains(&text) {
        return Ok(());
    }
    let named: Vec<&str> = known.iter().copied().filter(|k| !k.is_empty()).collect();
    Err(Error::field(field, format!("{text:?} is unknown; use one of {}", named.join(", "))).allowing(named))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(hostname: &str) -> BTreeMap<&'static str, String> {
        BTreeMap::from([("hostname", hostname.to_owned()), ("mac", "52:54:00:4d:59:01".to_owned())])
    }

    fn workflow(cmdline: &str, template: &str) -> BootWorkflow {
        BootWorkflow {
            id: "w".into(),
            kernel: "vmlinuz".into(),
            cmdline: cmdline.into(),
            template: template.into(),
            ..BootWorkflow::default()
        }
    }

    #[test]
    fn values_are_put_in_by_name_and_quoted_by_kind() {
        let w = workflow("host=${hostname} m=${mac} price=$$5", "name: ${hostname:yaml}\nx=${hostname:shell}");
        assert_eq!(w.rendered_cmdline(&values("a-1")), Ok("host=a-1 m=52:54:00:4d:59:01 price=$5".to_owned()));
        let odd = values("it's \"x\\");
        assert_eq!(w.rendered_template(&odd), Ok("name: \"it's \\\"x\\\\\"\nx='it'\\''s \"x\\'".to_owned()));
        assert_eq!(w.rendered_cmdline(&values("")), Ok("host= m=52:54:00:4d:59:01 price=$5".to_owned()));
    }

    #[test]
    fn a_hostile_name_is_refused_where_it_would_be_read_as_more() {
        let w = workflow("host=${hostname}", "${hostname:shell}");
        let hostile = [
            "a init=/bin/sh",
            "a\nkernel evil",
            "a;reboot",
            "${mac}",
            "a\"b",
            "ü",
            "a|b",
            "a>b",
            "*",
            "~",
            "#",
            "&&",
            "%post",
        ];
        for hostile in hostile.into_iter().chain(["a&b", "a?b", "a=b", "%x", "a,b", "a/b", "a@b", "a+b"]) {
            assert!(w.rendered_cmdline(&values(hostile)).is_err(), "{hostile:?}");
        }
        // what is ours needs these, and holds nothing that a machine has said
        let url =
            BTreeMap::from([("answers_url", "http://10.0.0.1:7702/api/v1/boot/answers?token=a.1.b&x=%20".to_owned())]);
        assert!(workflow("ds=${answers_url}", "").rendered_cmdline(&url).is_ok());
        assert!(w.rendered_template(&values("a\nb")).is_err(), "no quoting holds a line break everywhere");
        assert_eq!(w.rendered_template(&values("${mac}")), Ok("'${mac}'".to_owned()), "it is not read again");
    }

    #[test]
    fn what_readers_of_yaml_stumble_over_is_escaped() {
        let w = workflow("", "${hostname:yaml}");
        assert_eq!(
            w.rendered_template(&values("ü\u{2028}\u{feff}\u{1f600}")),
            Ok("\"\\u00fc\\u2028\\ufeff\u{1f600}\"".to_owned())
        );
        assert!(CLAIMED.iter().all(|name| VARIABLES.iter().any(|known| known.0 == *name)));
    }

    #[test]
    fn a_machine_names_no_option_of_a_kernel() {
        let made = |cmdline: &str| workflow(cmdline, "").checked().map_err(|e| e.message);
        for good in ["", "${mac}", "h=${hostname}", "a ${url} b=\"${serial}\"", "x=${mac}${serial}", "h=$$${serial}"] {
            assert!(made(good).is_ok(), "{good}");
        }
        for bad in ["${serial}", "quiet ${hostname}", "a=b\"\" \"${serial}\"", "${mac} ${ip}", "a=${hostname:shell}"] {
            assert!(made(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_workflow_is_judged_when_it_is_made() {
        let good = BootWorkflow { image: "debian".into(), ..workflow("a=${mac}", "") };
        assert_eq!(good.clone().checked().map(|w| w.disk), Ok("auto".to_owned()));
        let bad = |change: fn(&mut BootWorkflow)| {
            let mut w = good.clone();
            change(&mut w);
            w.checked().map_err(|e| e.message).expect_err("bad")
        };
        assert!(bad(|w| w.cmdline = "${mak}".into()).contains("mak"));
        assert!(bad(|w| w.cmdline = "$mac".into()).contains("$$"));
        assert!(bad(|w| w.cmdline = "${mac:xml}".into()).contains("xml"));
        assert!(bad(|w| w.kernel = "../etc/passwd".into()).contains("kernel"));
        assert!(bad(|w| w.kernel = "http://a/b c".into()).contains("kernel"));
        assert!(bad(|w| w.image = "http://a/b".into()).contains("image_sha256"));
        assert!(bad(|w| w.image_sha256 = "12".into()).contains("image_sha256"));
        let far = |scheme: &str| {
            let (image, image_sha256) = (format!("{scheme}://a/b.raw"), "ab".repeat(32));
            BootWorkflow { image, image_sha256, ..good.clone() }.checked().map_err(|e| e.message)
        };
        assert!(far("http").is_ok());
        assert!(far("https").is_err_and(|why| why.contains("http://") && why.contains("TLS")));
        assert!(bad(|w| w.arch = "sparc".into()).contains("sparc"));
        assert!(bad(|w| w.disk = "/dev/../mem".into()).contains("disk"));
        assert!(bad(|w| w.disk = "sda".into()).contains("disk"));
    }
}
