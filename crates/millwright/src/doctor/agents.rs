//! The agents' door: can its port be had, are agents told where to come, and does the authority that signs for them open?

use super::report::Report;
use crate::config::Config;
use service::SecretKeys;
use std::io::ErrorKind;
use std::net::TcpListener;

const AREA: &str = "agents";

/// `held`: a server runs on this data folder, and has the port. `sealed`: the key that the authority is sealed under.
pub fn check(report: &mut Report, config: &Config, held: bool, keys: &SecretKeys, sealed: Option<&str>) {
    if !config.agents.enabled {
        return report.skipped(AREA, "agents.enabled = false: none come to this server");
    }
    if let Some(why) = keys.problem() {
        let what = format!("their door does not open: {why}");
        return report.doubtful(AREA, what, "set the key, or agents.enabled = false where no agents are wanted");
    }
    if let Some(lost) = sealed.filter(|sealed| !keys.ids().iter().any(|id| id == sealed)) {
        let what = format!("their authority is sealed under key {lost}, which is not configured");
        report.failed(AREA, what, "name it in secrets.key_file or secrets.previous_key_files");
    }
    let listen = match config.agents.listen_at(&config.server.listen) {
        Ok(listen) => listen,
        Err(e) => return report.failed(AREA, e, "set agents.listen"),
    };
    match TcpListener::bind(&listen) {
        Ok(listener) => match listener.local_addr().map(|address| config.agents.public_url(address)) {
            Ok(Ok(url)) => report.fine(AREA, format!("{listen} is free; they come to {url}")),
            Ok(Err(why)) => report.doubtful(AREA, why, "until then no bundle can be made"),
            Err(e) => report.failed(AREA, format!("{listen}: {e}"), "choose another with agents.listen"),
        },
        Err(e) if e.kind() == ErrorKind::AddrInUse && held => {
            report.fine(AREA, format!("{listen} is in use, as it should be: the server runs"));
        }
        Err(e) if e.kind() == ErrorKind::AddrInUse => {
            let next = "end that program, or choose another with agents.listen";
            report.failed(AREA, format!("{listen} is taken by another program"), next);
        }
        Err(e) => report.failed(AREA, format!("{listen}: {e}"), "choose another with agents.listen"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use service::SecretKey;

    fn lines(config: &Config, keys: &SecretKeys, sealed: Option<&str>) -> String {
        let mut report = Report::new();
        check(&mut report, config, false, keys, sealed);
        report.lines(false).join("\n")
    }

    #[test]
    fn what_keeps_agents_away_is_told_with_what_to_do() {
        let (key, _) = SecretKey::generate().expect("randomness");
        let keys = SecretKeys::given(key);
        let mut config = Config::default();
        "127.0.0.1:0".clone_into(&mut config.server.listen);
        let fine = lines(&config, &keys, None);
        assert!(fine.starts_with("ok") && fine.contains("https://127.0.0.1:"), "{fine}");
        assert!(lines(&config, &keys, Some("abc")).contains("FAIL  agents  their authority is sealed under key abc"));
        let none = SecretKeys::missing("set secrets.key_file");
        assert!(lines(&config, &none, None).contains("does not open: set secrets.key_file"));
        "0.0.0.0:0".clone_into(&mut config.server.listen);
        assert!(lines(&config, &keys, None).contains("agents.public_url"));
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        config.agents.listen = Some(taken.local_addr().expect("an address").to_string());
        assert!(lines(&config, &keys, None).contains("taken by another program"));
        config.agents.enabled = false;
        assert!(lines(&config, &keys, None).starts_with("skip"));
    }
}
