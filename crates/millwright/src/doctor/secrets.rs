//! The key that credentials are sealed with: is it there, for nobody else to read, and does it open what is stored?

use super::report::Report;
use crate::config::Config;
use crate::secrets::{load, own_key_file};
use service::SecretKeys;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const AREA: &str = "secrets key";

/// `sealed`: the keys that credentials are sealed under, and how many under each. Answers with the keys that there are.
pub async fn check(report: &mut Report, config: &Config, sealed: &[(String, i64)]) -> SecretKeys {
    let (secrets, shared) = (&config.secrets, !config.database.url.is_empty());
    let own = own_key_file(&config.server.data);
    for path in secrets.key_file.iter().chain(&secrets.previous_key_files).chain([&own]) {
        if let Ok(text) = std::fs::read_to_string(path) {
            report.secret(&text);
        }
        mode(report, path);
    }
    if let Some(key) = &secrets.key {
        report.secret(key.reveal());
    }
    let loaded = load(secrets, &config.server.data, shared).await;
    if !secrets.is_configured() && sealed.is_empty() && loaded.keys.ids().is_empty() {
        let what = if shared { "none is configured, and none is needed yet" } else { "none yet: made at first use" };
        report.skipped(AREA, what);
        return loaded.keys;
    }
    for problem in &loaded.problems {
        report.failed(AREA, problem.clone(), "until then what it seals cannot be opened, and all else works");
    }
    let ids = loaded.keys.ids();
    for (key_id, count) in sealed.iter().filter(|(id, _)| !ids.contains(id)) {
        let what = format!("{count} credentials are sealed under key {key_id}, which is not configured");
        report.failed(AREA, what, "name it in secrets.key_file or secrets.previous_key_files, or set them again");
    }
    let Some(current) = ids.first() else { return loaded.keys };
    let old: i64 = sealed.iter().filter(|(id, _)| ids.contains(id) && id != current).map(|(_, count)| count).sum();
    if old > 0 {
        let what = format!("{old} credentials are still sealed under an earlier key");
        report.doubtful(AREA, what, "millwright credential rotate-key");
    }
    let opens: i64 = sealed.iter().filter(|(id, _)| ids.contains(id)).map(|(_, count)| count).sum();
    report.fine(AREA, format!("{current} from {}: {opens} stored credentials open", loaded.from));
    loaded.keys
}

fn mode(report: &mut Report, path: &Path) {
    let Ok(known) = std::fs::metadata(path) else { return };
    let mode = known.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        let name = path.display();
        let next = format!("chmod 600 {name}; if others were here, rotate it and set the credentials anew");
        report.failed(AREA, format!("{name}: everybody can read it (mode {mode:03o})"), next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use service::SecretKey;

    async fn lines(config: &Config, sealed: &[(String, i64)]) -> String {
        let mut report = Report::new();
        check(&mut report, config, sealed).await;
        report.lines(false).join("\n")
    }

    #[tokio::test]
    async fn it_is_told_whether_the_key_opens_what_is_stored() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::default();
        folder.path().clone_into(&mut config.server.data);
        assert!(lines(&config, &[]).await.starts_with("skip"), "{}", lines(&config, &[]).await);
        let lost = lines(&config, &[("abc".to_owned(), 2)]).await;
        assert!(lost.contains("FAIL  secrets key  2 credentials are sealed under key abc"), "{lost}");
        let (key, text) = SecretKey::generate().expect("randomness");
        let path = own_key_file(folder.path());
        crate::data_dir::write_private(&path, text.reveal()).expect("written");
        let sealed = [(key.id().to_owned(), 3)];
        let fine = lines(&config, &sealed).await;
        assert!(fine.starts_with("ok") && fine.contains("3 stored credentials open"), "{fine}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).expect("set");
        assert!(lines(&config, &sealed).await.contains("everybody can read it (mode 604)"));
        // another key now, and that one from before
        let earlier = folder.path().join("earlier.key");
        std::fs::rename(&path, &earlier).expect("moved");
        crate::data_dir::write_private(&path, SecretKey::generate().expect("randomness").1.reveal()).expect("written");
        config.secrets.previous_key_files = vec![earlier];
        let old = lines(&config, &sealed).await;
        assert!(
            old.contains("warn  secrets key  3 credentials are still sealed") && !old.contains(text.reveal()),
            "{old}"
        );
    }
}
