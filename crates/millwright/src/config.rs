//! The configuration: a TOML file, then the environment (`MILLWRIGHT_SECTION__KEY`), then flags.

use crate::agents_config::Agents;
use crate::netboot_config::Netboot;
use crate::toml_error;
use domain::Secret;
use domain::limits::short;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub server: Server,
    pub database: Database,
    pub secrets: Secrets,
    pub engine: Engine,
    pub observe: Observe,
    pub plans: Plans,
    pub providers: BTreeMap<String, Provider>,
    pub datacenter: Datacenter,
    pub images: BTreeMap<String, ImageSource>,
    pub netboot: Netboot,
    pub agents: Agents,
    pub shutdown: Shutdown,
    pub limits: Limits,
    pub log: Log,
    pub tls: Tls,
    pub metrics: Metrics,
    pub telemetry: Telemetry,
}

/// Both or neither.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The certificate, and after it those that lead to its root, in PEM.
    pub cert: Option<PathBuf>,
    /// Its private key, in PEM.
    pub key: Option<PathBuf>,
}

impl Tls {
    pub fn pair(&self) -> Option<(&Path, &Path)> {
        self.cert.as_deref().zip(self.key.as_deref())
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// `/metrics` is shown without a token.
    pub public: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// Where traces are sent, by OTLP over gRPC: `http://HOST:4317`, or `https://…`. Empty: none are made.
    pub otlp_endpoint: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    pub listen: String,
    pub data: PathBuf,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Database {
    /// `postgres://USER@HOST:PORT/NAME`, also with several hosts (`HOST:PORT,HOST:PORT`) of which one takes changes;
    /// empty: SQLite in the data folder.
    pub url: String,
    pub password_file: Option<PathBuf>,
    /// Only from the environment: `MILLWRIGHT_DATABASE__PASSWORD`.
    #[serde(deserialize_with = "secret")]
    pub password: Option<Secret>,
}

/// The key that credentials are sealed with. At most one of the three that name it; without any, a server that has its
/// database for itself makes one in its data folder.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Secrets {
    /// 32 random bytes in base64 or hex.
    pub key_file: Option<PathBuf>,
    /// A program that prints the key, and its arguments. Run once, at the start, without a shell.
    pub key_command: Vec<String>,
    /// Only from the environment: `MILLWRIGHT_SECRETS__KEY`.
    #[serde(deserialize_with = "secret")]
    pub key: Option<Secret>,
    /// Keys from before, which only open, until `millwright credential rotate-key` is done.
    pub previous_key_files: Vec<PathBuf>,
}

fn secret<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Secret>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(Secret::new))
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engine {
    pub lease_seconds: u64,
    pub call_timeout_seconds: u64,
    pub workers: usize,
    pub destructive_per_rack_and_hour: u64,
}

/// How machines are looked at.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Observe {
    pub period_seconds: u64,
    /// What one look may take.
    pub timeout_seconds: u64,
    pub concurrency: usize,
    /// What was not confirmed for so long is shown as stale; three periods if unset.
    pub stale_after_seconds: Option<u64>,
}

impl Observe {
    pub fn stale_after(&self) -> u64 {
        self.stale_after_seconds.unwrap_or(3 * self.period_seconds)
    }

    fn check(&self) -> Result<(), String> {
        for (key, value, max) in [
            ("period_seconds", self.period_seconds, PERIOD_MAX_SECONDS),
            ("timeout_seconds", self.timeout_seconds, LOOK_MAX_SECONDS),
            ("concurrency", self.concurrency as u64, LOOKS_MAX),
        ] {
            if value == 0 || value > max {
                return Err(format!("observe.{key}: {value} is outside 1 to {max}"));
            }
        }
        let stale_after = self.stale_after();
        if stale_after < self.period_seconds || stale_after > STALE_MAX_SECONDS {
            return Err(format!(
                "observe.stale_after_seconds: {stale_after} must be at least observe.period_seconds ({}), since nothing is confirmed more often, and at most {STALE_MAX_SECONDS}",
                self.period_seconds
            ));
        }
        Ok(())
    }
}

impl Secrets {
    /// Whether somebody has said where a key comes from.
    pub fn is_configured(&self) -> bool {
        self.key_file.is_some()
            || !self.key_command.is_empty()
            || self.key.is_some()
            || !self.previous_key_files.is_empty()
    }

    fn check(&self) -> Result<(), String> {
        let given = [self.key_file.is_some(), !self.key_command.is_empty(), self.key.is_some()];
        if given.into_iter().filter(|given| *given).count() > 1 {
            return Err("secrets: the key comes from key_file, key_command or MILLWRIGHT_SECRETS__KEY; more than one of them is set".to_owned());
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plans {
    /// Every `.json`, `.yaml` and `.yml` in it is a plan.
    pub folder: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Provider {
    pub kind: String,
    pub enabled: Option<bool>,
    /// Of a simulated fleet: where its world is kept. Servers that share one share its machines.
    pub journal: Option<PathBuf>,
    pub seed: u64,
    /// Of a MAAS: the site whose machines it drives ('millwright site list').
    pub site: String,
}

/// What drives the machines of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderKind {
    Sim,
    Maas,
}

impl Provider {
    /// Of the provider of this name.
    pub fn kind(&self, name: &str) -> Result<ProviderKind, String> {
        let kind = match self.kind.as_str() {
            "sim" => ProviderKind::Sim,
            "" if name == "sim" => ProviderKind::Sim,
            "maas" => ProviderKind::Maas,
            other => return Err(format!("providers.{name}.kind: {other:?} is unknown; this version knows: sim, maas")),
        };
        let not_for = |field: &str| Err(format!("providers.{name}.{field}: is not for kind {:?}", self.kind));
        match kind {
            ProviderKind::Sim if !self.site.is_empty() => not_for("site"),
            ProviderKind::Maas if self.journal.is_some() => not_for("journal"),
            ProviderKind::Maas if self.seed != 0 => not_for("seed"),
            ProviderKind::Maas if self.site.is_empty() => {
                Err(format!("providers.{name}.site: names the site whose machines it drives; 'millwright site list'"))
            }
            ProviderKind::Maas => domain::id::check_name("site", &self.site)
                .map(|()| kind)
                .map_err(|e| format!("providers.{name}.{}", e.message)),
            ProviderKind::Sim => Ok(kind),
        }
    }
}

/// The provider for real machines.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Datacenter {
    pub enabled: bool,
    /// Calls at the same time over the whole fleet, for runs and people; sweeps have as many again.
    pub redfish_calls: usize,
    /// Each of them is a process.
    pub ipmi_calls: usize,
    pub ssh_calls: usize,
}

impl Default for Datacenter {
    fn default() -> Self {
        let options = datacenter::Options::default();
        Self {
            enabled: true,
            redfish_calls: options.redfish_calls,
            ipmi_calls: options.ipmi_calls,
            ssh_calls: options.ssh_calls,
        }
    }
}

impl Datacenter {
    fn check(&self) -> Result<(), String> {
        for (key, value) in
            [("redfish_calls", self.redfish_calls), ("ipmi_calls", self.ipmi_calls), ("ssh_calls", self.ssh_calls)]
        {
            if value == 0 || value > CALLS_MAX {
                return Err(format!("datacenter.{key}: {value} is outside 1 to {CALLS_MAX}"));
            }
        }
        Ok(())
    }
}

/// How an image gets onto real machines: one of the two.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageSource {
    /// The URL of an installer that BMCs present as a CD.
    pub media: Option<String>,
    /// A script that runs on the host.
    pub script: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActiveRuns {
    /// Left for the next server, or the next start.
    #[default]
    HandOver,
    Cancel,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    pub active_runs: ActiveRuns,
}

/// What one token may use.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub calls_per_second: u32,
    /// Calls at once after a pause.
    pub burst: u32,
    pub streams_per_caller: usize,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// A level, or directives such as `info,millwright_engine=debug`.
    pub level: String,
    pub json: bool,
}

impl Default for Server {
    fn default() -> Self {
        Self { listen: "127.0.0.1:7700".to_owned(), data: PathBuf::from("millwright-data") }
    }
}

impl Default for Engine {
    fn default() -> Self {
        let engine = engine::EngineOptions::new("");
        Self {
            lease_seconds: engine.lease.as_secs(),
            call_timeout_seconds: engine.call_timeout.as_secs(),
            workers: engine.workers,
            destructive_per_rack_and_hour: engine.destructive_per_rack_and_hour,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let limits = service::CallerLimits::default();
        Self { calls_per_second: limits.calls_per_second, burst: limits.burst, streams_per_caller: limits.streams }
    }
}

impl Default for Observe {
    fn default() -> Self {
        let observe = reconcile::ReconcilerOptions::new("");
        Self {
            period_seconds: observe.period.as_secs(),
            timeout_seconds: observe.timeout.as_secs(),
            concurrency: observe.concurrency,
            stale_after_seconds: None,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned(), json: false }
    }
}

const WORKERS_MAX: usize = 100_000;
const LEASE_MAX_SECONDS: u64 = 3600;
const PERIOD_MAX_SECONDS: u64 = 24 * 3600;
const LOOK_MAX_SECONDS: u64 = 600;
const LOOKS_MAX: u64 = 10_000;
const CALLS_MAX: usize = 10_000;
const STALE_MAX_SECONDS: u64 = 30 * 24 * 3600;
const PREFIX: &str = "MILLWRIGHT_";
/// Of a key, with itself: more than any has.
const SECTIONS_MAX: usize = 8;

impl Config {
    pub fn load(file: Option<&Path>) -> Result<Self, String> {
        let text = match file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|e| format!("reading the configuration {}: {e}", path.display()))?,
            None => String::new(),
        };
        let origin = file.map_or("the configuration".to_owned(), |p| format!("the configuration {}", p.display()));
        Self::parse(&text, &origin, std::env::vars())
    }

    pub(crate) fn parse(
        text: &str,
        origin: &str,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, String> {
        // keys and words are told as they stand there, and can be of any length
        Self::parse_whole(text, origin, environment).map_err(|e| short(&e))
    }

    fn parse_whole(
        text: &str,
        origin: &str,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, String> {
        let mut table: toml::Table = text.parse().map_err(|e| {
            let (line, why) = toml_error::problem(text, &e);
            format!("{origin}, line {line}: {why}")
        })?;
        for (name, value) in environment {
            if let Some(path) = name.strip_prefix(PREFIX).filter(|p| p.contains("__")) {
                if path.split("__").count() > SECTIONS_MAX {
                    return Err(format!("environment variable {name}: names more sections than there are"));
                }
                set(&mut table, &path.to_ascii_lowercase(), &value)
                    .map_err(|e| format!("environment variable {name}: {e}"))?;
            }
        }
        let config: Config = table.try_into().map_err(|e: toml::de::Error| {
            // the key, which stands behind the reason
            let said = e.to_string();
            let place = said.split_once("\nin ").map_or(String::new(), |(_, key)| format!("{}: ", key.trim()));
            format!("{origin} or environment: {place}{}", toml_error::reason(e.message()))
        })?;
        config.check().map_err(|e| format!("{origin}: {e}"))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let limits = &self.limits;
        if limits.calls_per_second == 0 || limits.burst == 0 || limits.streams_per_caller == 0 {
            return Err("limits: calls_per_second, burst and streams_per_caller must be at least 1".to_owned());
        }
        let engine = &self.engine;
        if engine.workers == 0 || engine.workers > WORKERS_MAX {
            return Err(format!("engine.workers: {} is outside 1 to {WORKERS_MAX}", engine.workers));
        }
        if engine.lease_seconds > LEASE_MAX_SECONDS {
            return Err(format!("engine.lease_seconds: {} is above {LEASE_MAX_SECONDS}", engine.lease_seconds));
        }
        if engine.call_timeout_seconds == 0 || engine.call_timeout_seconds > engine.lease_seconds / 2 {
            return Err(format!(
                "engine.call_timeout_seconds ({}) must be at least 1 and at most half of engine.lease_seconds ({}), so that no call outlasts its lease",
                engine.call_timeout_seconds, engine.lease_seconds
            ));
        }
        self.observe.check()?;
        self.datacenter.check()?;
        self.secrets.check()?;
        self.netboot.check()?;
        self.agents.check()?;
        crate::logging::filter(&self.log.level)?;
        match (&self.tls.cert, &self.tls.key) {
            (Some(_), None) => return Err("tls.key: is missing; tls.cert needs its private key".to_owned()),
            (None, Some(_)) => return Err("tls.cert: is missing; tls.key needs its certificate".to_owned()),
            (Some(_), Some(_)) | (None, None) => {}
        }
        let endpoint = &self.telemetry.otlp_endpoint;
        if !endpoint.is_empty() && !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err("telemetry.otlp_endpoint: is not a URL such as http://127.0.0.1:4317".to_owned());
        }
        if endpoint.contains('@') {
            return Err("telemetry.otlp_endpoint: must not hold a user or a password; what the collector wants to see goes into OTEL_EXPORTER_OTLP_HEADERS".to_owned());
        }
        if self.datacenter.enabled && self.providers.contains_key(crate::providers::DATACENTER) {
            return Err(
                "providers.datacenter: that name is the built-in provider's; set it up in [datacenter]".to_owned()
            );
        }
        for (name, provider) in &self.providers {
            provider.kind(name)?;
        }
        Ok(())
    }
}

/// Puts a value at `section__key`, read as TOML where that works and as text otherwise. A password or a key
/// is a text whatever it looks like, and no error must quote it.
fn set(table: &mut toml::Table, path: &str, value: &str) -> Result<(), String> {
    let (head, rest) = match path.split_once("__") {
        Some((head, rest)) => (head, Some(rest)),
        None => (path, None),
    };
    match rest {
        Some(rest) => {
            let entry = table.entry(head).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            match entry {
                toml::Value::Table(inner) => set(inner, rest, value),
                _ => Err(format!("{head} is not a section")),
            }
        }
        None => {
            let parsed = match head {
                "password" | "key" => None,
                _ => format!("v = {value}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("v")),
            };
            table.insert(head.to_owned(), parsed.unwrap_or_else(|| toml::Value::String(value.to_owned())));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Config::parse(text, "test.toml", environment)
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let config = parse(
            "[server]\nlisten = '127.0.0.1:1'\n[engine]\nworkers = 5",
            &[
                ("MILLWRIGHT_ENGINE__WORKERS", "7"),
                ("MILLWRIGHT_SHUTDOWN__ACTIVE_RUNS", "cancel"),
                ("MILLWRIGHT_DATABASE__PASSWORD", "12345"),
                ("MILLWRIGHT_SECRETS__KEY", "67890"),
                ("MILLWRIGHT_TOKEN", "x"),
            ],
        )
        .expect("parses");
        let password = config.database.password.as_ref().map(Secret::reveal);
        assert_eq!(password, Some("12345"), "a text, whatever it looks like");
        assert_eq!(config.secrets.key.as_ref().map(Secret::reveal), Some("67890"));
        assert!(!format!("{config:?}").contains("12345") && !format!("{config:?}").contains("67890"));
        assert_eq!((config.engine.workers, config.server.listen.as_str()), (7, "127.0.0.1:1"));
        assert_eq!(config.shutdown.active_runs, ActiveRuns::Cancel);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("[server]\nlisen = 'x'", "lisen"),
            ("[engine]\nworkers = 0", "engine.workers"),
            ("[engine]\ncall_timeout_seconds = 20", "lease_seconds"),
            ("[observe]\nconcurrency = 0", "observe.concurrency"),
            ("[observe]\ntimeout_seconds = 601", "observe.timeout_seconds"),
            ("[observe]\nperiod_seconds = 60\nstale_after_seconds = 59", "observe.stale_after_seconds"),
            ("[providers.dc]\nkind = 'telepathy'", "providers.dc.kind"),
            ("[providers.datacenter]\nkind = 'sim'", "[datacenter]"),
            ("[providers.lab]\nkind = 'maas'", "providers.lab.site"),
            ("[providers.lab]\nkind = 'maas'\nsite = 'a b'", "providers.lab.site"),
            ("[providers.lab]\nkind = 'maas'\nsite = 'lab'\nseed = 1", "providers.lab.seed"),
            ("[providers.a]\nkind = 'sim'\nsite = 'lab'", "providers.a.site"),
            ("[datacenter]\nredfish_calls = 0", "datacenter.redfish_calls"),
            ("[netboot]\nmode = 'authoritative'", "netboot.range"),
            ("[netboot]\nstrangers = 'welcome'", "strangers"),
            ("[netboot]\nrouter = 'gateway'", "router"),
            ("[agents]\ncertificate_hours = 0", "agents.certificate_hours"),
            ("[agents]\nlost_after_seconds = 20", "agents.lost_after_seconds"),
            ("[agents]\npublic_url = 'http://mw.example'", "agents.public_url"),
            ("[images.a]\niso = 'x'", "iso"),
            ("[server", "test.toml"),
            ("[tls]\ncert = 'a.pem'", "tls.key"),
            ("[tls]\nkey = 'a.key'", "tls.cert"),
            ("[telemetry]\notlp_endpoint = 'collector:4317'", "telemetry.otlp_endpoint"),
            ("[secrets]\nkey_file = 'a.key'\nkey_command = ['vault']", "more than one"),
            ("[secrets]\nkey_command = 'vault read'", "key_command"),
        ] {
            let error = parse(text, &[]).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
        assert!(parse("", &[("MILLWRIGHT_ENGINE__WORKERS", "many")]).is_err());
    }

    /// The example with every key that it only shows taken up.
    fn example() -> String {
        let text = include_str!("../../../deploy/millwright.toml");
        let shown = |line: &str| {
            line.strip_prefix("# ").filter(|rest| rest.contains(" = ") || rest.starts_with('[')).map(str::to_owned)
        };
        text.lines().map(|line| shown(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
    }

    /// The section without what the example only shows how to set.
    fn by_default(shown: Netboot) -> Netboot {
        let Netboot { interface, listen, public_url, mode, range, router, dns, reservations, .. } = Netboot::default();
        let Netboot { promoted_groups, images_folder, .. } = Netboot::default();
        Netboot {
            interface,
            listen,
            public_url,
            mode,
            range,
            router,
            dns,
            reservations,
            promoted_groups,
            images_folder,
            ..shown
        }
    }

    fn without_places(agents: Agents) -> Agents {
        Agents { listen: None, public_url: None, agent_url: None, agent_sha256: None, ..agents }
    }

    #[test]
    fn the_example_names_every_key_and_shows_the_defaults() {
        let as_it_is = parse(include_str!("../../../deploy/millwright.toml"), &[]).expect("the example parses");
        assert!(as_it_is.tls.pair().is_some() && as_it_is.log.json);
        assert!(as_it_is.providers.is_empty(), "nobody wants simulated machines without having said so");
        let mut config = parse(&example(), &[]).expect("and so it does with every key");
        let images = std::mem::take(&mut config.images);
        assert!(images.values().any(|i| i.media.is_some()) && images.values().any(|i| i.script.is_some()));
        let (text, default) = (format!("{config:#?}"), Config::default());
        let unset: Vec<&str> = text.lines().filter(|l| l.contains(": None")).map(str::trim).collect();
        assert_eq!(unset, ["password: None,", "key: None,"], "which must not stand in a file");
        for (shown, default) in [
            (format!("{:?}", config.engine), format!("{:?}", default.engine)),
            (format!("{:?}", config.limits), format!("{:?}", default.limits)),
            (format!("{:?}", config.datacenter), format!("{:?}", default.datacenter)),
            (format!("{:?}", by_default(config.netboot)), format!("{:?}", default.netboot)),
            (format!("{:?}", without_places(config.agents.clone())), format!("{:?}", default.agents)),
            (format!("{:?}", config.shutdown), format!("{:?}", default.shutdown)),
            (format!("{:?}", config.metrics), format!("{:?}", default.metrics)),
            (
                format!("{:?}", Observe { stale_after_seconds: None, ..config.observe.clone() }),
                format!("{:?}", default.observe),
            ),
        ] {
            assert_eq!(shown, default);
        }
        assert_eq!(config.observe.stale_after_seconds, Some(default.observe.stale_after()));
    }
}
