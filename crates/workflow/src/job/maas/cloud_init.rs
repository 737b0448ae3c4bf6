//! What a deployed machine is told at its first boot: a template of the site's or our own, filled in. Every value is
//! written as one quoted YAML string, so that no name, however hostile, is ever read as anything else.

use domain::Secret;
use domain::site::Profile;

/// The first line by which cloud-init knows what it is given.
const HEAD: &str = "#cloud-config";
/// MAAS and cloud-init take more; nobody needs it.
const MAX: usize = 64 * 1024;

/// What stands in a template.
pub const PLACEHOLDERS: [&str; 8] =
    ["hostname", "node_id", "node_name", "site", "bundle_base64", "install_script_base64", "agent_url", "agent_sha256"];

/// Fetches the agent, checks that it is the right one, and has it install itself with the bundle. Reads its words from
/// its arguments: nothing is ever put into its text.
const INSTALL_SCRIPT: &str = r#"#!/bin/sh
# Installs the node's agent: millwright-install-agent BUNDLE [URL SHA256]
# Nothing is executed in /run, which may forbid it; the bundle never comes to a disk before the agent has it.
set -eu
bundle=$1
url=${2-}
sum=${3-}
trap 'rm -f "$bundle" /usr/local/sbin/millwright-agent.new /run/millwright-install-agent' EXIT
if [ -n "$url" ]; then
    n=0
    until curl -fsS --retry 3 -o /usr/local/sbin/millwright-agent.new "$url" || wget -q -O /usr/local/sbin/millwright-agent.new "$url"; do
        n=$((n + 1))
        [ "$n" -lt 10 ] || { echo "the agent could not be fetched from $url" >&2; exit 1; }
        sleep 6
    done
    echo "$sum  /usr/local/sbin/millwright-agent.new" | sha256sum -c - >/dev/null
    chmod 0755 /usr/local/sbin/millwright-agent.new
    /usr/local/sbin/millwright-agent.new install --bundle "$bundle"
else
    millwright-agent install --bundle "$bundle"
fi
"#;

const DEFAULT: &str = "#cloud-config
hostname: {{ hostname }}
write_files:
  - path: /run/millwright-bundle.json
    owner: root:root
    permissions: '0600'
    encoding: b64
    content: {{ bundle_base64 }}
  - path: /run/millwright-install-agent
    owner: root:root
    permissions: '0700'
    encoding: b64
    content: {{ install_script_base64 }}
runcmd:
  - [sh, /run/millwright-install-agent, /run/millwright-bundle.json, {{ agent_url }}, {{ agent_sha256 }}]
";

/// What a machine is told.
#[derive(Clone, Debug)]
pub struct Told<'a> {
    pub hostname: &'a str,
    pub node_id: &'a str,
    pub node_name: &'a str,
    pub site: &'a str,
    pub bundle: &'a Secret,
}

/// The names that a template asks for, in their order; or what is wrong with it.
pub fn placeholders(template: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find("{{") {
        let after = rest.get(at + 2..).unwrap_or_default();
        let end = after.find("}}").ok_or_else(|| "a {{ is never closed by }}".to_owned())?;
        let name = after.get(..end).unwrap_or_default().trim();
        if !PLACEHOLDERS.contains(&name) {
            return Err(format!("{{{{ {name} }}}} is unknown; there are {}", PLACEHOLDERS.join(", ")));
        }
        found.push(name.to_owned());
        rest = after.get(end + 2..).unwrap_or_default();
    }
    Ok(found)
}

/// Whether a template can be filled in. Its own words are the site's; an empty one means ours.
pub fn check(template: &str) -> Result<(), String> {
    if template.is_empty() {
        return Ok(());
    }
    if template.len() > MAX {
        return Err(format!("it has {} bytes, of {MAX} at most", template.len()));
    }
    if template.lines().next().map(str::trim_end) != Some(HEAD) {
        return Err(format!("its first line is not {HEAD}"));
    }
    let names = placeholders(template)?;
    match names.iter().any(|name| name == "bundle_base64") {
        true => Ok(()),
        false => Err("it has no {{ bundle_base64 }}: no agent could enrol".to_owned()),
    }
}

/// One string of YAML in double quotes, which is one of JSON's with everything but plain ASCII escaped.
fn quoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            ' '..='~' => text.push(c),
            c if (c as u32) <= 0xffff => text.push_str(&format!("\\u{:04x}", c as u32)),
            c => text.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    text.push('"');
    text
}

fn base64(bytes: &[u8]) -> String {
    use ::base64::Engine as _;
    ::base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The whole text. It holds the bundle, and is as secret.
pub fn render(profile: &Profile, told: &Told<'_>) -> Result<Secret, String> {
    let template = if profile.cloud_init.is_empty() { DEFAULT } else { profile.cloud_init.as_str() };
    filled(template, &profile.agent_url, &profile.agent_sha256, told)
}

/// The same for a machine of no site: our own template.
pub fn own(agent_url: &str, agent_sha256: &str, told: &Told<'_>) -> Result<Secret, String> {
    filled(DEFAULT, agent_url, agent_sha256, told)
}

fn filled(template: &str, agent_url: &str, agent_sha256: &str, told: &Told<'_>) -> Result<Secret, String> {
    check(template)?;
    let mut text = String::with_capacity(template.len() + 4096);
    let mut rest = template;
    while let Some(at) = rest.find("{{") {
        let (before, after) = (rest.get(..at).unwrap_or_default(), rest.get(at + 2..).unwrap_or_default());
        let end = after.find("}}").unwrap_or(after.len());
        let value = match after.get(..end).unwrap_or_default().trim() {
            "hostname" => quoted(told.hostname),
            "node_id" => quoted(told.node_id),
            "node_name" => quoted(told.node_name),
            "site" => quoted(told.site),
            "bundle_base64" => quoted(&base64(told.bundle.reveal().as_bytes())),
            "install_script_base64" => quoted(&base64(INSTALL_SCRIPT.as_bytes())),
            "agent_url" => quoted(agent_url),
            "agent_sha256" => quoted(agent_sha256),
            name => return Err(format!("{{{{ {name} }}}} is unknown")),
        };
        text.push_str(before);
        text.push_str(&value);
        rest = after.get(end + 2..).unwrap_or_default();
    }
    text.push_str(rest);
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_template_is_a_good_one_and_uses_everything_it_needs() {
        assert_eq!(check(DEFAULT), Ok(()));
        let names = placeholders(DEFAULT).expect("known names");
        assert!(
            ["hostname", "bundle_base64", "install_script_base64"].iter().all(|n| names.contains(&(*n).to_owned()))
        );
    }

    #[test]
    fn templates_that_cannot_be_filled_in_are_refused_with_the_reason() {
        for (template, why) in [
            ("#!/bin/sh\n{{ bundle_base64 }}", "first line"),
            ("#cloud-config\n{{ bundle_base64 ", "never closed"),
            ("#cloud-config\n{{ password }} {{ bundle_base64 }}", "unknown"),
            ("#cloud-config\nhostname: {{ hostname }}\n", "no agent could enrol"),
        ] {
            let refused = check(template).expect_err(template);
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn whatever_a_value_holds_it_is_one_quoted_string() {
        for value in ["a", "a\"b", "a\\", "x: y\n- z", "{{ bundle_base64 }}", "\u{7f}\u{2028}é\u{1f600}", "'; rm -rf /"]
        {
            let text = quoted(value);
            let read: String = serde_json::from_str(&text.replace("\\U0001f600", "\\ud83d\\ude00")).expect(&text);
            assert_eq!(read, value);
            assert!(text.is_ascii() && !text.contains('\n'));
        }
    }
}
