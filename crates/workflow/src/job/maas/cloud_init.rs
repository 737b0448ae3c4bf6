//! What a deployed machine is told at its first boot: a template of the site's or our own, filled in. Every value is
//! written as one quoted YAML string, so that no name, however hostile, is ever read as anything else.

use domain::Secret;
use domain::site::Profile;
use domain::site_check::check_template;

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
    check_template(template)?;
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
    use domain::site::{DiskRule, Layout};
    use domain::site_check::{PLACEHOLDERS, placeholders};

    #[test]
    fn our_own_template_is_a_good_one_and_uses_everything_it_needs() {
        assert_eq!(check_template(DEFAULT), Ok(()));
        let names = placeholders(DEFAULT).expect("known names");
        assert!(
            ["hostname", "bundle_base64", "install_script_base64"].iter().all(|n| names.contains(&(*n).to_owned()))
        );
    }

    /// What a template may ask for is what it is filled in with.
    #[test]
    fn every_placeholder_is_filled_in() {
        let (bundle, mut template) = (Secret::new("x"), "#cloud-config\n".to_owned());
        for name in PLACEHOLDERS {
            template.push_str(&format!("{name}: {{{{ {name} }}}}\n"));
        }
        let profile = Profile {
            name: "gpu".to_owned(),
            architecture: String::new(),
            series: String::new(),
            kernel: String::new(),
            layout: Layout::Flat,
            root_size: String::new(),
            boot_disk: DiskRule::default(),
            pxe_subnet: String::new(),
            roce: Vec::new(),
            cloud_init: template,
            agent_url: "https://images.example/agent".to_owned(),
            agent_sha256: String::new(),
            tags: Vec::new(),
            pool: String::new(),
            zone: String::new(),
            testing_scripts: Vec::new(),
        };
        let told = Told { hostname: "h", node_id: "n", node_name: "m", site: "s", bundle: &bundle };
        let text = render(&profile, &told).expect("is filled in");
        assert!(!text.reveal().contains("{{"), "{}", text.reveal());
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
