//! The way to the server, as every client command goes it: address, token, the server's answer.

use super::report::Report;
use crate::cli::{CliError, ClientOptions, Target, Token, call, connect_as, dated, now};
use proto::baremetal::v1::ListMachinesRequest;
use proto::millwright::v1::{GetMeRequest, Me};

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub async fn check(report: &mut Report, options: &ClientOptions) {
    let target = match Target::resolve(options) {
        Ok(target) => target,
        Err(e) => return report.error("client", &e),
    };
    report.fine(
        "client",
        format!("talks to {} ({}); token {}", target.server, target.server_from, target.token_described()),
    );
    let secret = match target.secret() {
        Ok(secret) => secret,
        Err(e) if target.is_by_default() => {
            return report.skipped("token", format!("{e}; none is needed before the first start"));
        }
        Err(e) => return report.error("token", &e),
    };
    report.secret(&secret);
    match (target.doubt(), &target.token) {
        (Some(doubt), _) => report.doubtful("token", doubt, "if others were here, make a new one and revoke this one"),
        (None, Some((Token::File(path), _))) => report.fine("token", format!("read from {}", path.display())),
        (None, Some((Token::Given(_), _)) | None) => {}
    }
    let clients = match connect_as(&target).await {
        Ok(clients) => clients,
        Err(e) => return unreachable(report, &target, &e),
    };
    match call(clients.tokens.clone().get_me(GetMeRequest {})).await {
        Ok(me) => accepted(report, &target, &me),
        // a server from before it could tell: any call tells whether the token is good
        Err(e) if e.is_unimplemented() => {
            let request = ListMachinesRequest { page_size: 1, ..ListMachinesRequest::default() };
            match call(clients.machines.clone().list_machines(request)).await {
                Ok(_) => {
                    let what =
                        format!("{} takes the token, and is too old to tell its role and version", target.server);
                    report.doubtful("server", what, format!("bring it to {VERSION}"));
                }
                Err(e) => unreachable(report, &target, &e),
            }
        }
        Err(e) => unreachable(report, &target, &e),
    }
}

/// A server that nobody has asked for by name need not be there.
fn unreachable(report: &mut Report, target: &Target, error: &CliError) {
    let plain = target.server.starts_with("http://") && !error.is_an_answer();
    if plain && crate::cli::speaks_tls(&target.server) {
        let next = format!("use {}", target.server.replacen("http://", "https://", 1));
        return report.failed("server", format!("{} speaks TLS", target.server), next);
    }
    if target.is_by_default() && !error.is_an_answer() {
        return report.doubtful(
            "server",
            error.to_string(),
            "start one with `millwright serve`, or name one with --server",
        );
    }
    report.error("server", error);
}

fn accepted(report: &mut Report, target: &Target, me: &Me) {
    let customer = if me.customer_id.is_empty() { String::new() } else { format!(", customer {}", me.customer_id) };
    let until = match me.expires_at.as_ref() {
        Some(at) => format!(", until {}", dated(Some(at), now())),
        None => String::new(),
    };
    report.fine("server", format!("{} takes the token: {}, {}{customer}{until}", target.server, me.name, me.role));
    if me.server_version == VERSION {
        report.fine("version", format!("{VERSION} on both sides"));
    } else {
        let what = format!("the server has {}, this command line {VERSION}", me.server_version);
        report.doubtful("version", what, "use the same on both sides: what one knows the other may not");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Format;

    #[test]
    fn another_version_is_told() {
        let options = ClientOptions {
            server: Some("http://h:1".to_owned()),
            token: Some("t".to_owned()),
            token_file: None,
            ca_file: None,
            context: None,
            output: Format::Table,
        };
        let target = Target::resolve(&options).map_err(|e| e.to_string()).expect("resolved");
        let mut report = Report::new();
        let me = |version: &str| Me {
            name: "ann".into(),
            role: "viewer".into(),
            server_version: version.into(),
            ..Me::default()
        };
        accepted(&mut report, &target, &me(VERSION));
        accepted(&mut report, &target, &me("0.0.1"));
        let lines = report.lines(false);
        assert_eq!(lines[0], "ok    server   http://h:1 takes the token: ann, viewer");
        assert!(lines[1].starts_with("ok") && lines[3].starts_with("warn"), "{lines:?}");
    }
}
