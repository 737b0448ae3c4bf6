//! Every call against every kind of caller: the real answers of a server, as a table that a person can
//! review (`golden/access.txt`). The calls come from the descriptors, the pages from the access table.

use crate::asks::{Asks, FOREIGN, OWN, every_call};
use crate::callers::{caller, caller_for, root};
use crate::fixture::Api;
use crate::raw;
use crate::refusal::Refusal;
use domain::token::Role;
use prost_reflect::MethodDescriptor;
use prost_reflect::prost::bytes::Bytes;
use proto::millwright::v1 as mw;
use service::access_table::{PATHS, RULES, Rule, Scope, rule_of};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use testkit::fleet::eventually;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Somebody who asks, and whose things it asks for.
struct Column {
    name: &'static str,
    /// The whole header.
    header: Option<String>,
    about: &'static str,
    /// Nobody we know, and the word for why not.
    stranger: Option<&'static str>,
    role: Role,
    scoped: bool,
}

impl Column {
    fn stranger(name: &'static str, header: Option<String>, why: &'static str) -> Self {
        Self { name, header, about: OWN, stranger: Some(why), role: Role::Viewer, scoped: false }
    }

    /// What the rule says that this caller must be told. For what a customer's token may ask in part
    /// only, the request decides: see `scope.rs`.
    fn expected(&self, rule: &Rule, hides: Hides) -> &'static str {
        if let Some(why) = self.stranger {
            return why;
        }
        if self.role < rule.role {
            return "role";
        }
        match (rule.scope, self.scoped, self.about == FOREIGN) {
            (Scope::Fleet, true, _) => "scope",
            (Scope::Customers, true, true) => match hides {
                Hides::ById => "hidden",
                Hides::BySilence => "nothing",
                Hides::Nothing => "ok",
            },
            (Scope::Fleet | Scope::Customers, _, _) => "ok",
        }
    }
}

/// How a call about somebody else's thing says nothing.
#[derive(Clone, Copy)]
enum Hides {
    /// As if it were not there.
    ById,
    /// With an empty list, or a stream that says nothing.
    BySilence,
    /// It is about no machine and no run.
    Nothing,
}

fn hides(call: &str) -> Hides {
    match call.rsplit('/').next().unwrap_or_default() {
        "ListMachines" | "ListRuns" | "WatchEvents" => Hides::BySilence,
        "GetPlan" | "ListPlans" | "GetFreeze" | "GetMe" => Hides::Nothing,
        _ => Hides::ById,
    }
}

const LEGEND: &str = "\
Who may call what, as a running server answers. Made by the test `access::every_call_has_its_verdict`.

  ok        served
  nothing   served, and silent: an empty list, or a stream without an event
  hidden    NOT_FOUND, exactly as for what is not there
  role      PERMISSION_DENIED ROLE_TOO_LOW
  scope     PERMISSION_DENIED OUT_OF_SCOPE
  missing, invalid, expired, revoked    UNAUTHENTICATED TOKEN_…
  absent    no such page in this server

Columns without 'foreign' ask for things of the customer acme, those with it for things of globex. The
tokens c-… are acme's; viewer, operator and admin are for the whole fleet.
";

fn word(status: &Status) -> String {
    let refusal = Refusal::of(status);
    match (refusal.code, refusal.reason.as_str()) {
        (Code::Unauthenticated, "TOKEN_MISSING") => "missing".into(),
        (Code::Unauthenticated, "TOKEN_INVALID") => "invalid".into(),
        (Code::Unauthenticated, "TOKEN_EXPIRED") => "expired".into(),
        (Code::Unauthenticated, "TOKEN_REVOKED") => "revoked".into(),
        (Code::PermissionDenied, "ROLE_TOO_LOW") => "role".into(),
        (Code::PermissionDenied, "OUT_OF_SCOPE") => "scope".into(),
        (Code::NotFound, reason) if reason.ends_with("_NOT_FOUND") => "hidden".into(),
        (code, reason) => format!("{code:?}/{reason}"),
    }
}

async fn columns(api: &Api) -> Vec<Column> {
    let bearer = |secret: &str| Some(format!("Bearer {secret}"));
    let expired = caller_for(api, "expired", "admin", "", 1).await;
    let revoked = caller(api, "revoked", "admin", "").await;
    root(api).await.revoke(&revoked.token.token_id).await.expect("revokes");
    eventually("a token to expire", || async { expired.me().await.err() }).await;
    let mut columns = vec![
        Column::stranger("none", None, "missing"),
        Column::stranger("malformed", Some(format!("Basic {}", api.server.token)), "invalid"),
        Column::stranger("unknown", bearer("mwt_unknown"), "invalid"),
        Column::stranger("expired", bearer(&expired.secret), "expired"),
        Column::stranger("revoked", bearer(&revoked.secret), "revoked"),
    ];
    let names = [
        ["viewer", "c-viewer", "c-viewer foreign"],
        ["operator", "c-operator", "c-operator foreign"],
        ["admin", "c-admin", "c-admin foreign"],
    ];
    for (of_role, role) in names.iter().zip(Role::ALL) {
        let fleet = caller(api, of_role[0], role.as_str(), "").await;
        let customer = caller(api, of_role[1], role.as_str(), OWN).await;
        for (name, who, about) in
            [(of_role[0], &fleet, OWN), (of_role[1], &customer, OWN), (of_role[2], &customer, FOREIGN)]
        {
            let header = bearer(&who.secret);
            columns.push(Column { name, header, about, stranger: None, role, scoped: who.secret == customer.secret });
        }
    }
    columns
}

async fn verdict(channel: Channel, method: &MethodDescriptor, path: &str, header: Option<&str>, body: Bytes) -> String {
    let mut request = Request::new(body);
    if let Some(header) = header {
        request.metadata_mut().insert("authorization", header.parse().expect("a header"));
    }
    let listing = method.name().starts_with("List") || method.is_server_streaming();
    match raw::call_once(channel, path, request).await {
        Ok(None) => "nothing".into(),
        Ok(Some(answer)) if answer.is_empty() && listing => "nothing".into(),
        Ok(Some(_)) => "ok".into(),
        Err(status) => word(&status),
    }
}

/// A page, or a service that is not ours to declare, by the beginning of its path.
async fn page(api: &Api, channel: Channel, path: &str, header: Option<&str>) -> String {
    let refused = |code: i32| match Code::from_i32(code) {
        Code::Ok => "ok".to_owned(),
        Code::Unauthenticated => "refused".to_owned(),
        Code::Unimplemented => "absent".to_owned(),
        code => format!("{code:?}"),
    };
    let (method, body) = match path {
        "/grpc.health.v1.Health/" => ("Check", Bytes::new()),
        "/grpc.reflection." => ("v1.ServerReflection/ServerReflectionInfo", Bytes::from_static(b"\x3a\x01*")),
        _ => {
            let (status, grpc) = http_get(&api.server.url, path, header).await;
            return match (status, grpc) {
                (200, code) => refused(code.unwrap_or(0)),
                (401, _) => "refused".to_owned(),
                (404, _) => "absent".to_owned(),
                (status, _) => status.to_string(),
            };
        }
    };
    let mut request = Request::new(body);
    if let Some(header) = header {
        request.metadata_mut().insert("authorization", header.parse().expect("a header"));
    }
    match raw::call_once(channel, &format!("{path}{method}"), request).await {
        Ok(_) => "ok".to_owned(),
        Err(status) => refused(status.code().into()),
    }
}

/// The status, and the gRPC status where there is one.
async fn http_get(url: &str, path: &str, header: Option<&str>) -> (u16, Option<i32>) {
    let header = header.map_or(String::new(), |h| format!("Authorization: {h}\r\n"));
    let head = raw::http_head(url, path, &header).await.to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    let grpc = head.lines().find_map(|l| l.strip_prefix("grpc-status:")).and_then(|s| s.trim().parse().ok());
    (status, grpc)
}

struct Table {
    widths: Vec<usize>,
    text: String,
}

impl Table {
    fn new(columns: &[Column]) -> Self {
        let widths = columns.iter().map(|c| c.name.split(' ').map(str::len).max().unwrap_or(0).max(8)).collect();
        let mut table = Self { widths, text: format!("{LEGEND}\n") };
        table.row("", &columns.iter().map(|c| c.name.split(' ').next().unwrap_or_default()).collect::<Vec<_>>());
        table.row("", &columns.iter().map(|c| c.name.split(' ').nth(1).unwrap_or_default()).collect::<Vec<_>>());
        table
    }

    fn row(&mut self, call: &str, cells: &[impl AsRef<str>]) {
        let mut line = format!("{call:<48}");
        for (cell, width) in cells.iter().zip(&self.widths) {
            write!(line, " {:<width$}", cell.as_ref()).expect("writes");
        }
        writeln!(self.text, "{}", line.trim_end()).expect("writes");
    }
}

// every call × {no, malformed, expired, revoked token, foreign scope, each role} has its verdict,
// generated from the descriptors; a call without one fails
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_has_its_verdict() {
    let api = Api::new().await;
    let (asks, columns) = (Asks::new(&api).await, columns(&api).await);
    let channel = raw::channel(&api.server.url).await;
    let mut table = Table::new(&columns);
    for (call, method) in every_call() {
        let rule = rule_of(&call).unwrap_or_else(|| panic!("{call} is not in the access table"));
        let mut cells = Vec::new();
        for column in &columns {
            let ask = asks.of(&call, column.about).await;
            let path = format!("/{call}");
            let seen = verdict(channel.clone(), &method, &path, column.header.as_deref(), ask.body.into()).await;
            assert_eq!(seen, column.expected(rule, hides(&call)), "{call} for {}", column.name);
            cells.push(seen);
            if call.ends_with("/Freeze") {
                api.engines().unfreeze(mw::UnfreezeRequest {}).await.expect("unfreezes");
            }
        }
        table.row(&call, &cells);
    }
    for (path, role) in PATHS {
        let mut cells = Vec::new();
        for column in &columns {
            let seen = page(&api, channel.clone(), path, column.header.as_deref()).await;
            assert!(seen == "ok" || role.is_some(), "{path} is open to anybody, and {} is told {seen}", column.name);
            assert_eq!(seen == "refused", role.is_some() && column.stranger.is_some(), "{path} for {}", column.name);
            cells.push(seen);
        }
        table.row(path, &cells);
    }
    testkit::golden::check("crates/testkit/golden/access.txt", &table.text);
}

// and the table has no rule for a call that is not there
#[test]
fn the_table_and_the_descriptors_name_the_same_calls() {
    let declared: BTreeSet<String> = every_call().into_iter().map(|c| c.0).collect();
    let judged: BTreeSet<String> = RULES.iter().map(|r| r.call.to_owned()).collect();
    assert_eq!(declared, judged);
}

// CONTRACT: the database away is UNAVAILABLE; never "not there", nor "who are you"
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_database_nothing_is_said_to_be_missing() {
    let api = Api::new().await;
    let asks = Asks::new(&api).await;
    let (admin, customer) = (root(&api).await, caller(&api, "c-admin", "admin", OWN).await);
    customer.me().await.expect("is known");
    let mut requests = Vec::new();
    for (call, _) in every_call() {
        for (secret, scoped) in [(&admin.secret, false), (&customer.secret, true), (&"mwt_unknown".to_owned(), false)] {
            let ask = asks.of(&call, if scoped { FOREIGN } else { OWN }).await;
            requests.push((call.clone(), secret.clone(), scoped, ask.body));
        }
    }
    let store = api.server.fleet.store.clone();
    tokio::task::spawn_blocking(move || store.close()).await.expect("closes");
    let channel = raw::channel(&api.server.url).await;
    for (call, secret, scoped, body) in requests {
        let rule = rule_of(&call).expect("a rule");
        let answer = raw::call_once(channel.clone(), &format!("/{call}"), raw::with_token(&secret, body)).await;
        // what is known without the database: who it is, and what is not for it at all
        let elsewhere = call.ends_with("/CheckCluster") && !scoped; // the cluster is asked, not us
        if (call.ends_with("/GetMe") || elsewhere) && secret != "mwt_unknown" {
            answer.expect("is known");
            continue;
        }
        let code = answer.expect_err(&call).code();
        let wanted = if scoped && rule.scope == Scope::Fleet { Code::PermissionDenied } else { Code::Unavailable };
        assert_eq!(code, wanted, "{call} with {}", &secret[..8]);
    }
}
