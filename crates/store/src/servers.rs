//! Which of PostgreSQL's servers to talk to. Several may be named, of which one takes changes: the others are
//! its standbys, and after a failover another one is it. A standby is not read from either, since what was
//! just acknowledged may not be there yet. And who has seen a promotion does not go back to the server from
//! before it, which may have come back not knowing that it was replaced.

use crate::error::DbError;
use crate::postgres::describe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

/// For all servers together, each having its share: one that is silent must not keep us from the next.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A peer that has vanished is noticed within half a minute, not within the two hours that are usual.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
const ALIVE_AGAIN: Duration = Duration::from_secs(5);
const ALIVE_TRIES: u32 = 3;
const UNHEARD_WITHIN: Duration = Duration::from_secs(25);
/// What the library has when nothing was said.
const LIBRARY_IDLE: Duration = Duration::from_secs(2 * 60 * 60);

/// The newest timeline that any connection of a store has seen. PostgreSQL begins a new one with every
/// promotion. 0: none was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Newest(Arc<AtomicU32>);

/// A connection, the task that drives it, and the timeline its server is on.
pub(crate) struct Connected {
    pub client: Client,
    pub driver: JoinHandle<()>,
    pub timeline: u32,
}

pub(crate) struct Servers {
    each: Vec<Config>,
    /// The one that was good the last time.
    first: usize,
    newest: Newest,
}

impl Servers {
    pub fn new(config: &Config, newest: Newest) -> Self {
        let count = config.get_hosts().len().max(config.get_hostaddrs().len()).max(1);
        let each = (0..count).map(|n| only(config, n)).collect();
        Self { each, first: 0, newest }
    }

    /// Whether somebody has seen a promotion since that timeline.
    pub fn moved_past(&self, timeline: u32) -> bool {
        timeline != 0 && timeline < self.newest.0.load(Ordering::Relaxed)
    }

    /// Connects to the first that takes changes, with these settings. Who has seen none yet asks all of them: an
    /// old primary that came back may be the first of the list, and says so of itself, too.
    pub async fn connect(&mut self, settings: &str) -> Result<Connected, DbError> {
        let count = self.each.len();
        let ask_all = count > 1 && self.newest.0.load(Ordering::Relaxed) == 0;
        let share = CONNECT_WITHIN / u32::try_from(count).unwrap_or(u32::MAX);
        let mut best: Option<(usize, Connected)> = None;
        let mut problems = Vec::new();
        for n in (0..count).map(|n| (self.first + n) % count) {
            let Some(config) = self.each.get(n) else { continue };
            let connecting = tokio::time::timeout(share, greet(config, settings)).await;
            let silent = |_| Err(format!("did not answer within {share:?}"));
            match connecting.unwrap_or_else(silent).and_then(|connected| self.judge(connected)) {
                // what was judged later is at least as new
                Ok(connected) if best.as_ref().is_none_or(|(_, b)| b.timeline < connected.timeline) => {
                    best = Some((n, connected));
                }
                Ok(_) => {}
                Err(problem) if count == 1 => problems.push(format!("PostgreSQL: {problem}")),
                Err(problem) => problems.push(format!("PostgreSQL at {}: {problem}", name(config))),
            }
            if best.is_some() && !ask_all {
                break;
            }
        }
        let (n, connected) = best.ok_or_else(|| DbError::Away(problems.join("; ")))?;
        self.first = n;
        Ok(connected)
    }

    fn judge(&self, connected: Connected) -> Result<Connected, String> {
        let timeline = connected.timeline;
        self.newest.0.fetch_max(timeline, Ordering::Relaxed);
        if self.moved_past(timeline) {
            let newest = self.newest.0.load(Ordering::Relaxed);
            return Err(format!(
                "was replaced by a promoted standby (it is on timeline {timeline}, and {newest} was seen)"
            ));
        }
        Ok(connected)
    }
}

/// Ends with this unless it is taken out: a connection that was not finished is closed.
struct Driver(Option<JoinHandle<()>>);

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(driver) = &self.0 {
            driver.abort();
        }
    }
}

async fn greet(config: &Config, settings: &str) -> Result<Connected, String> {
    let (client, connection) = config.connect(NoTls).await.map_err(|e| describe(&e))?;
    // ends with the client; its error reaches the call in flight
    let mut driver = Driver(Some(tokio::spawn(async move { drop(connection.await) })));
    let (set, standby, timeline) = futures::join!(
        client.batch_execute(settings),
        client.simple_query("SELECT pg_is_in_recovery()"),
        client.simple_query("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"),
    );
    set.map_err(|e| describe(&e))?;
    if first(&standby.map_err(|e| describe(&e))?) == Some("t") {
        return Err("is a standby, and takes no changes".into());
    }
    // not every server that speaks this protocol has timelines: then none is judged
    let timeline = timeline.ok().and_then(|rows| u32::from_str_radix(first(&rows)?, 16).ok()).unwrap_or(0);
    let driver = driver.0.take().ok_or("the connection is gone")?;
    Ok(Connected { client, driver, timeline })
}

fn first(rows: &[SimpleQueryMessage]) -> Option<&str> {
    rows.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    })
}

fn name(config: &Config) -> String {
    match (config.get_hostaddrs().first(), config.get_hosts().first()) {
        (Some(address), _) => address.to_string(),
        (None, Some(Host::Tcp(name))) => name.clone(),
        (None, Some(Host::Unix(path))) => path.display().to_string(),
        (None, None) => "an address that is missing".to_owned(),
    }
}

/// The same, with one of its servers.
fn only(config: &Config, n: usize) -> Config {
    let mut one = Config::new();
    match config.get_hosts().get(n) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    if let Some(address) = config.get_hostaddrs().get(n) {
        one.hostaddr(*address);
    }
    if let Some(port) = config.get_ports().get(n).or_else(|| config.get_ports().first()) {
        one.port(*port);
    }
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    config.get_application_name().map(|name| one.application_name(name));
    config.get_connect_timeout().map(|span| one.connect_timeout(*span));
    one.ssl_mode(config.get_ssl_mode()).ssl_negotiation(config.get_ssl_negotiation());
    one.channel_binding(config.get_channel_binding()).load_balance_hosts(config.get_load_balance_hosts());
    one.target_session_attrs(config.get_target_session_attrs());
    let idle = Some(config.get_keepalives_idle()).filter(|idle| *idle != LIBRARY_IDLE);
    one.keepalives(config.get_keepalives()).keepalives_idle(idle.unwrap_or(ALIVE_EVERY));
    one.keepalives_interval(config.get_keepalives_interval().unwrap_or(ALIVE_AGAIN));
    one.keepalives_retries(config.get_keepalives_retries().unwrap_or(ALIVE_TRIES));
    one.tcp_user_timeout(config.get_tcp_user_timeout().copied().unwrap_or(UNHEARD_WITHIN));
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_of_a_list_has_its_own_address_and_the_rest_in_common() {
        let url = "postgres://mw:secret@a:1,b:2/fleet?application_name=x&keepalives_idle=77";
        let servers = Servers::new(&url.parse().expect("a URL"), Newest::default());
        let names: Vec<(String, &[u16])> = servers.each.iter().map(|c| (name(c), c.get_ports())).collect();
        assert_eq!(names, [("a".to_owned(), &[1][..]), ("b".to_owned(), &[2][..])]);
        for config in &servers.each {
            let same = (config.get_user(), config.get_dbname(), config.get_password(), config.get_application_name());
            assert_eq!(same, (Some("mw"), Some("fleet"), Some(&b"secret"[..]), Some("x")));
            assert_eq!(config.get_keepalives_idle(), Duration::from_secs(77), "what was asked for is kept");
            assert_eq!(config.get_tcp_user_timeout(), Some(&UNHEARD_WITHIN));
        }
    }

    #[test]
    fn who_has_seen_a_promotion_does_not_go_back() {
        let newest = Newest::default();
        let servers = Servers::new(&Config::new(), newest.clone());
        assert!(!servers.moved_past(1));
        newest.0.fetch_max(2, Ordering::Relaxed);
        assert!(servers.moved_past(1));
        assert!(!servers.moved_past(2));
        assert!(!servers.moved_past(0), "without timelines nothing is judged");
    }
}
