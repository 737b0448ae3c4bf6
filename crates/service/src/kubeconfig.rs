//! Whether a text is a kubeconfig that a server can use: whole, and asking for nothing of the machine it came from.
//! What is said about it never quotes it: it holds tokens and keys.

use domain::Error;
use serde_yaml_ng::Value;

const FIELD: &str = "kubeconfig";
/// What would be looked for in a file of ours.
const FILES: [&str; 4] = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];
/// What would be run as a program of ours.
const PROGRAMS: [&str; 2] = ["exec", "auth-provider"];

fn wrong(problem: impl std::fmt::Display) -> Error {
    Error::field(FIELD, problem)
}

pub(crate) fn check(text: &str) -> Result<(), Error> {
    let document: Value = serde_yaml_ng::from_str(text).map_err(|e| {
        let place = e.location().map(|at| format!(" in line {}", at.line())).unwrap_or_default();
        wrong(format!("does not read as YAML{place}"))
    })?;
    let list = |name: &str| document.get(name).and_then(Value::as_sequence).cloned().unwrap_or_default();
    let clusters = list("clusters");
    if clusters.is_empty() {
        return Err(wrong(
            "names no clusters; it must be a whole kubeconfig, as 'kubectl config view --raw' prints it",
        ));
    }
    for (i, entry) in clusters.iter().enumerate() {
        let cluster = entry.get("cluster");
        if !cluster.and_then(|c| c.get("server")).is_some_and(Value::is_string) {
            return Err(wrong(format!("clusters[{i}] has no server")));
        }
        portable(&format!("clusters[{i}].cluster"), cluster)?;
    }
    for (i, entry) in list("users").iter().enumerate() {
        portable(&format!("users[{i}].user"), entry.get("user"))?;
    }
    Ok(())
}

fn portable(place: &str, within: Option<&Value>) -> Result<(), Error> {
    let Some(within) = within else { return Ok(()) };
    if let Some(name) = FILES.iter().find(|name| within.get(**name).is_some()) {
        return Err(wrong(format!(
            "{place}.{name} names a file, which the server has not; make one that holds everything: kubectl config view --raw --flatten --minify"
        )));
    }
    if let Some(name) = PROGRAMS.iter().find(|name| within.get(**name).is_some()) {
        return Err(wrong(format!(
            "{place}.{name} asks for a program to be run, which the server does not do; use a token or a client certificate"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_is_whole_and_asks_for_nothing() {
        let good = "clusters:\n- name: a\n  cluster: {server: 'https://a:6443', certificate-authority-data: QQ==}\nusers:\n- name: u\n  user: {token: hunter2}\n";
        assert_eq!(check(good), Ok(()));
        for (bad, part) in [
            ("", "names no clusters"),
            ("hunter2", "names no clusters"),
            ("clusters: [", "line"),
            ("clusters: []", "names no clusters"),
            ("clusters: [{name: a}]", "clusters[0] has no server"),
            (
                "clusters: [{cluster: {server: s, certificate-authority: /home/me/ca}}]",
                "clusters[0].cluster.certificate-authority",
            ),
            ("clusters: [{cluster: {server: s}}]\nusers: [{user: {exec: {command: hunter2}}}]", "users[0].user.exec"),
            ("clusters: [{cluster: {server: s}}]\nusers: [{user: {tokenFile: hunter2}}]", "flatten"),
            ("clusters: [{cluster: {server: s}}]\nusers: [{user: {token: hunter2", "does not read as YAML"),
        ] {
            let error = check(bad).expect_err(bad);
            assert!(error.message.contains(part) && !error.message.contains("hunter2"), "{error}");
        }
    }
}
