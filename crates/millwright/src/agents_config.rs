//! The section `[agents]`: where nodes' agents come to, and how long what they have is good.

use domain::agent::{CERTIFICATE_LIFE, HeartbeatPolicy, RENEW_GRACE};
use serde::Deserialize;
use service::agents::AgentSetup;
use std::net::SocketAddr;
use std::time::Duration;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Agents {
    pub enabled: bool,
    /// The port after the main one if unset.
    pub listen: Option<String>,
    /// What bundles tell agents to come to; `https://` and the address that is listened on if unset.
    pub public_url: Option<String>,
    pub certificate_hours: u64,
    /// How long after its end a certificate may still be renewed.
    pub renew_grace_days: u64,
    pub heartbeat_seconds: u64,
    /// Without a word for so long a node is offline.
    pub lost_after_seconds: u64,
    /// So many without a gap, and it is back.
    pub back_after_beats: u32,
    pub max_skew_seconds: u64,
    /// At the same time.
    pub connections: usize,
    /// Where a machine that network boot installs anew fetches its agent; and the digest of that.
    pub agent_url: Option<String>,
    pub agent_sha256: Option<String>,
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
const CONNECTIONS_MAX: u64 = 1_000_000;

impl Default for Agents {
    fn default() -> Self {
        let (setup, beats) = (AgentSetup::default(), HeartbeatPolicy::default());
        Self {
            enabled: true,
            listen: None,
            public_url: None,
            certificate_hours: CERTIFICATE_LIFE.as_secs() / HOUR,
            renew_grace_days: RENEW_GRACE.as_secs() / DAY,
            heartbeat_seconds: beats.interval.as_secs(),
            lost_after_seconds: beats.lost_after.as_secs(),
            back_after_beats: beats.back_after,
            max_skew_seconds: setup.max_skew.as_secs(),
            connections: api::AgentOptions::default().connections_max,
            agent_url: None,
            agent_sha256: None,
        }
    }
}

impl Agents {
    pub fn check(&self) -> Result<(), String> {
        for (key, value, max) in [
            ("certificate_hours", self.certificate_hours, 365 * 24),
            ("renew_grace_days", self.renew_grace_days, 365),
            ("heartbeat_seconds", self.heartbeat_seconds, 600),
            ("back_after_beats", u64::from(self.back_after_beats), 100),
            ("max_skew_seconds", self.max_skew_seconds, DAY),
            ("connections", self.connections as u64, CONNECTIONS_MAX),
        ] {
            if value == 0 || value > max {
                return Err(format!("agents.{key}: {value} is outside 1 to {max}"));
            }
        }
        let (beat, lost) = (self.heartbeat_seconds, self.lost_after_seconds);
        if lost < 2 * beat || lost > DAY {
            return Err(format!(
                "agents.lost_after_seconds: {lost} must be at least twice agents.heartbeat_seconds ({beat}), so that one lost word is none, and at most {DAY}"
            ));
        }
        if self.public_url.as_ref().is_some_and(|url| !url.starts_with("https://")) {
            return Err("agents.public_url: is not a URL such as https://millwright.example.net:7701".to_owned());
        }
        let text = |set: &Option<String>| set.clone().unwrap_or_default();
        let (url, sha256) = (text(&self.agent_url), text(&self.agent_sha256));
        domain::site_check::check_agent("agents.agent_url", "agents.agent_sha256", &url, &sha256).map_err(|e| e.message)
    }

    /// Where to listen, beside a main port at `main`.
    pub fn listen_at(&self, main: &str) -> Result<String, String> {
        if let Some(listen) = &self.listen {
            return Ok(listen.clone());
        }
        let split = main.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let (host, port) = split.ok_or_else(|| format!("agents.listen: is not set, and {main} has no port"))?;
        // any port is any port
        let next = if port == 0 { Some(0) } else { port.checked_add(1) };
        let next = next.ok_or_else(|| format!("agents.listen: is not set, and there is no port after {port}"))?;
        Ok(format!("{host}:{next}"))
    }

    /// What agents are told to come to, or why they cannot.
    pub fn public_url(&self, address: SocketAddr) -> Result<String, String> {
        match &self.public_url {
            Some(url) => Ok(url.clone()),
            None if address.ip().is_unspecified() => {
                Err(format!("agents.public_url: is not set, and agents cannot come to {address}"))
            }
            None => Ok(format!("https://{address}")),
        }
    }

    pub fn heartbeat(&self) -> HeartbeatPolicy {
        HeartbeatPolicy {
            interval: Duration::from_secs(self.heartbeat_seconds),
            lost_after: Duration::from_secs(self.lost_after_seconds),
            back_after: self.back_after_beats,
        }
    }

    pub fn setup(&self, public_url: Result<String, String>) -> AgentSetup {
        AgentSetup {
            public_url,
            certificate_life: Duration::from_secs(self.certificate_hours * HOUR),
            renew_grace: Duration::from_secs(self.renew_grace_days * DAY),
            heartbeat: self.heartbeat(),
            max_skew: Duration::from_secs(self.max_skew_seconds),
            agent_url: self.agent_url.clone().unwrap_or_default(),
            agent_sha256: self.agent_sha256.clone().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_come_to_the_port_after_the_main_one() {
        let agents = Agents::default();
        let at = |main: &str| agents.listen_at(main).ok();
        assert_eq!(at("127.0.0.1:7700").as_deref(), Some("127.0.0.1:7701"));
        assert_eq!(at("[::1]:80").as_deref(), Some("[::1]:81"));
        assert_eq!(at("127.0.0.1:0").as_deref(), Some("127.0.0.1:0"));
        assert_eq!((at("127.0.0.1:65535"), at("localhost")), (None, None));
        let set = Agents { listen: Some("10.0.0.1:1".to_owned()), ..Agents::default() };
        assert_eq!(set.listen_at("localhost").as_deref(), Ok("10.0.0.1:1"));
    }

    #[test]
    fn an_agent_is_fetched_by_a_plain_url_with_its_digest() {
        let some = |text: &str| Some(text.to_owned());
        let of = |url: &str, sum: &str| Agents { agent_url: some(url), agent_sha256: some(sum), ..Agents::default() };
        let sum = "ab".repeat(32);
        assert_eq!(of("https://files.example/agent", &sum).check(), Ok(()));
        for (url, sum, key) in [
            ("https://files.example/agent", "", "agents.agent_sha256"),
            ("", sum.as_str(), "agents.agent_sha256"),
            ("ftp://files.example/agent", &sum, "agents.agent_url"),
            ("https://files.example/$(x)\n", &sum, "agents.agent_url"),
        ] {
            let why = of(url, sum).check().expect_err(url);
            assert!(why.contains(key), "{why}");
        }
    }

    #[test]
    fn nobody_is_told_to_come_to_no_address() {
        let agents = Agents::default();
        let (any, one) = ("0.0.0.0:7701".parse().expect("one"), "10.0.0.1:7701".parse().expect("one"));
        assert!(agents.public_url(any).is_err_and(|why| why.contains("agents.public_url")));
        assert_eq!(agents.public_url(one).as_deref(), Ok("https://10.0.0.1:7701"));
    }
}
