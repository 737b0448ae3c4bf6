//! Secrets of every kind, planted; then everything is done that can be done, rightly and wrongly, through both doors
//! and the command line, with every log at trace level. What was written anywhere holds none of them.
//!
//! Every other test has its folder searched, too (`testkit::canary`); here it is made sure that the search had
//! enough to look at, and every kind of secret a chance to slip out.

use crate::process::{SAID, program, run, until};
use crate::server::{Client, Home, Launch, Server};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use testkit::canary::{self, foreign_token, plant};
use testkit::otlp::Collector;
use testkit::tls::Authority;
use testkit::web;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// What is written in a whole life of a server at trace level is more than this.
const BYTES_AT_LEAST: u64 = 2 << 20;
const FILES_AT_LEAST: usize = 100;

struct Stage {
    home: Home,
    runtime: Runtime,
    /// Answers and other things that are no file by themselves.
    kept: std::cell::Cell<usize>,
}

impl Stage {
    fn new() -> Self {
        Self { home: Home::new(), runtime: Runtime::new().expect("a runtime"), kept: std::cell::Cell::new(0) }
    }

    /// Leaves something where it is searched.
    fn keep(&self, what: &str, bytes: &[u8]) {
        self.kept.set(self.kept.get() + 1);
        let path = self.home.file(&format!("kept/{:04}-{what}", self.kept.get()), "");
        std::fs::write(path, bytes).expect("written");
    }

    /// A request as bytes; what is answered is kept. Streams are read for a moment only.
    fn ask(&self, server: &Client, request: &str, headers: &[(&str, &str)], body: &[u8]) {
        let address = server.url.strip_prefix("http://").expect("plain HTTP").to_owned();
        let mut bytes =
            format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            bytes += &format!("{name}: {value}\r\n");
        }
        bytes += "\r\n";
        let answer = self.runtime.block_on(async {
            let mut socket = TcpStream::connect(address).await.expect("connects");
            socket.write_all(bytes.as_bytes()).await.expect("sent");
            socket.write_all(body).await.expect("sent");
            let mut answer = Vec::new();
            let reading = socket.read_to_end(&mut answer);
            // a stream goes on for ever; what it has said by then is searched, too
            drop(tokio::time::timeout(std::time::Duration::from_millis(700), reading).await);
            answer
        });
        let made_a_token = request.contains("CreateToken") || request.starts_with("POST /api/v1/tokens");
        let done = answer.starts_with(b"HTTP/1.1 200") && !answer.windows(12).take(600).any(|w| w == b"grpc-status:");
        let shown = if made_a_token && done { ".shown" } else { "" };
        self.keep(&format!("answer{shown}"), &answer);
    }
}

/// Tokens of every kind and state, each in its file; the last ones open nothing.
fn tokens(stage: &Stage, server: &Server) -> Vec<String> {
    let admin = std::fs::read_to_string(&server.token_file).expect("a token").trim().to_owned();
    let make = |name: &str, more: &[&str]| {
        let secret = server.ok(&[&["token", "create", name][..], more].concat()).trim().to_owned();
        stage.home.file(&format!("{name}.token"), &secret);
        secret
    };
    let mut all = vec![
        admin,
        make("operator", &["--role", "operator"]),
        make("viewer", &["--role", "viewer"]),
        make("customer", &["--role", "operator", "--customer", "acme"]),
        make("fleeting", &["--role", "viewer", "--ttl", "1s"]),
        make("revoked", &["--role", "viewer"]),
    ];
    let id = server.ok(&["token", "list", "--filter", "name=revoked", "-o", "name"]);
    server.ok(&["token", "revoke", id.trim()]);
    // of another server, and no tokens at all
    all.extend([foreign_token(), plant("bearer")]);
    all
}

/// Every call of both doors with every token; right, malformed, and about what is not there.
fn through_the_doors(stage: &Stage, server: &Server, tokens: &[String]) {
    let pool = api::json::pool().expect("descriptors");
    for method in pool.services().flat_map(|s| s.methods().collect::<Vec<_>>()) {
        let path = format!("POST /{}/{}", method.parent_service().full_name(), method.name());
        for (i, token) in tokens.iter().enumerate() {
            let bearer = format!("Bearer {token}");
            let headers =
                [("authorization", bearer.as_str()), ("content-type", "application/grpc"), ("te", "trailers")];
            // an empty message, and with the first tokens one that does not read
            let bodies: &[&[u8]] =
                if i < 2 { &[&[0, 0, 0, 0, 0], &[0, 0, 0, 0, 2, 0x0a, 0x7f]] } else { &[&[0, 0, 0, 0, 0]] };
            for body in bodies {
                // what never ends by itself is asked for once
                if !method.is_server_streaming() || i < 1 {
                    stage.ask(server, &path, &headers, body);
                }
            }
        }
    }
    let document: Value = serde_json::from_str(&api::openapi().expect("a document")).expect("JSON");
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let at = path
            .split('/')
            .map(|part| if part.starts_with('{') { "sim-0001" } else { part })
            .collect::<Vec<_>>()
            .join("/");
        for method in methods.as_object().expect("methods").keys().filter(|m| m.len() < 7) {
            for token in [&tokens[0], &tokens[2], &tokens[6]] {
                let bearer = format!("Bearer {token}");
                let headers = [
                    ("authorization", bearer.as_str()),
                    ("content-type", "application/json"),
                    ("x-idempotency-key", "k"),
                ];
                let line = format!("{} {at}", method.to_uppercase());
                let streams = at.contains("watch") || at.contains("events") || at.contains("logs");
                if !streams || std::ptr::eq(token, &tokens[0]) {
                    stage.ask(
                        server,
                        &line,
                        &headers,
                        if method == "get" || method == "delete" { b"" } else { b"{\"nonsense\": 1}" },
                    );
                }
            }
        }
    }
    let made = json!({"name": "by-rest", "role": "viewer"}).to_string();
    let bearer = format!("Bearer {}", tokens[0]);
    let headers =
        [("authorization", bearer.as_str()), ("content-type", "application/json"), ("x-idempotency-key", "made-once")];
    for _ in 0..2 {
        // the second time it is not shown again
        stage.ask(server, "POST /api/v1/tokens", &headers, made.as_bytes());
    }
    for scheme in ["Basic", "bearer", "Token", ""] {
        stage.ask(server, "GET /api/v1/me", &[("authorization", &format!("{scheme} {}", tokens[0]))], b"");
    }
    stage.ask(server, "GET /metrics", &[("authorization", &bearer)], b"");
}

/// The command line with the right token, with wrong ones, and with the token given in every way.
fn by_command(stage: &Stage, server: &Server, tokens: &[String]) {
    server.ok(&["run", "start", "sim-0001", "--type", "REPAVE", "--wait"]);
    for words in [
        &["machine", "list", "-o", "wide"][..],
        &["machine", "show", "sim-0001"],
        &["machine", "register", "m-9", "--provider", "nowhere"],
        &["plan", "list"],
        &["run", "list", "-o", "json"],
        &["run", "start", "nowhere", "--type", "REBOOT"],
        &["why", "sim-0001"],
        &["token", "list", "-o", "json"],
        &["token", "show", "tok_none"],
        &["credential", "list", "-o", "wide"],
        &["credential", "show", "rack-1", "-o", "json"],
        &["credential", "delete", "none"],
        &["credential", "rotate-key"],
        &["cluster", "list", "-o", "yaml"],
        &["audit", "--limit", "50"],
        &["events", "--after", "0", "--limit", "5"],
        &["engine", "list"],
        &["freeze", "--reason", "a test"],
        &["unfreeze"],
        &["me"],
        &["doctor", "--client"],
    ] {
        server.run(words);
        for token in &tokens[2..] {
            let mut command = program(&stage.home.path(""));
            command.args(words).env("MILLWRIGHT_SERVER", &server.url).env("MILLWRIGHT_TOKEN", token);
            run(&mut command);
        }
        let mut given = program(&stage.home.path(""));
        run(given.args(words).args(["--server", &server.url, "--token", &tokens[6]]));
        let mut unreachable = program(&stage.home.path(""));
        run(unreachable.args(words).args(["--server", "http://127.0.0.1:1", "--token", &tokens[0]]));
    }
    // a setting of the BIOS may be a password: on trial, of no machine, and of one that does not have it
    let password = format!("SetupPassword={}", plant("bios"));
    for words in [&["sim-0001", "--dry-run"][..], &["sim-0001", "--dry-run", "-o", "json"], &["nowhere"], &["sim-0001"]]
    {
        let all = [&["machine", "bios", words[0], "set", &password][..], &words[1..]].concat();
        assert!(server.run(&all).code.is_some());
    }
    let token_file = server.token_file.display().to_string();
    stage.home.run(&["context", "set", "here", "--server", &server.url, "--token-file", &token_file]).with(0);
    stage.home.run(&["context", "show", "here", "-o", "json"]).with(0);
}

/// A kubeconfig as people have it, with this token in it.
fn kubeconfig(token: &str) -> String {
    format!(
        "clusters: [{{name: c, cluster: {{server: 'https://c:6443'}}}}]\nusers: [{{name: u, user: {{token: {token}}}}}]\n"
    )
}

fn private_key(inside: &str) -> String {
    format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{inside}\n-----END OPENSSH PRIVATE KEY-----\n")
}

/// Credentials of every kind, given in every way, rightly and wrongly, and used for all that they are for.
fn credentials(stage: &Stage, server: &Server, admin: &str) {
    let file = |name: &str, text: &str| stage.home.file(&format!("{name}.key"), text).display().to_string();
    let password = file("bmc-password", &plant("bmc"));
    let key = file("ssh-private", &private_key(&plant("ssh")));
    let passphrase = file("ssh-passphrase", &plant("passphrase"));
    let cluster = file("cluster", &kubeconfig(&plant("cluster")));
    let set = ["credential", "set"];
    let bmc = [&set[..], &["rack-1", "--kind", "bmc", "--username", "admin", "--password-file", &password]].concat();
    let ssh = ["fleet", "--kind", "ssh", "--username", "root", "--private-key", &key, "--passphrase-file", &passphrase];
    let ssh = [&set[..], &ssh].concat();
    let add = ["cluster", "add", "prod", "--kubeconfig", &cluster];
    let maas = file("maas", &format!("consumer:token:{}", plant("maas")));
    let maas = [&set[..], &["lab-maas", "--kind", "maas", "--api-key-file", &maas]].concat();
    for words in [&bmc[..], &ssh, &add, &maas] {
        for format in ["table", "json", "yaml"] {
            server.ok(&[words, &["--dry-run", "-o", format]].concat());
        }
        server.ok(words);
        server.ok(&[words, &["-o", "json"]].concat());
    }
    // a file in the place of another, and a name of another kind
    for words in [
        &["odd", "--kind", "ssh", "--username", "root", "--private-key", &password][..],
        &["odd", "--kind", "kubeconfig", "--kubeconfig", &key],
        &["odd", "--kind", "ca", "--certificates", &key],
        &["odd", "--kind", "maas", "--api-key-file", &password],
        &["fleet", "--kind", "bmc", "--username", "admin", "--password-file", &password],
        &["odd", "--kind", "bmc", "--username", "admin", "--password-file", &cluster],
    ] {
        server.run(&[&set[..], words].concat());
    }
    let secret = plant("rest");
    let bearer = format!("Bearer {admin}");
    let right = json!({"kind": "bmc", "username": "admin", "password": secret}).to_string();
    for (key, body) in [
        ("one", right.clone()),
        ("one", right),
        ("one", json!({"kind": "bmc", "username": "admin", "password": plant("another")}).to_string()),
        ("two", json!({"kind": "bmc", "username": "admin", "password": [secret]}).to_string()),
        ("two", json!({"kind": "ssh", "username": "root", "privateKey": {"key": secret}}).to_string()),
        ("two", json!({"kind": "ssh", "username": "root", "private_key": secret, "passphrase": secret}).to_string()),
        ("two", json!({"kind": "kubeconfig", "kubeconfig": format!("clusters: [{secret}")}).to_string()),
        (
            "two",
            json!({"kind": "kubeconfig", "kubeconfig": kubeconfig(&secret).replace("token", "tokenFile")}).to_string(),
        ),
        ("two", format!("{{\"kind\": \"bmc\", \"password\": \"{secret}")),
        ("two", json!({"kind": "bmc", "pasword": secret}).to_string()),
        ("two", json!({"kind": "maas", "api_key": format!("a:b:c:{secret}")}).to_string()),
    ] {
        let headers =
            [("authorization", bearer.as_str()), ("content-type", "application/json"), ("x-idempotency-key", key)];
        stage.ask(server, "PUT /api/v1/credentials/by-rest", &headers, body.as_bytes());
    }
    server.ok(&[
        "machine",
        "register",
        "m-7",
        "--provider",
        "sim",
        "--credentials-ref",
        "rack-1,fleet",
        "--cluster",
        "prod",
    ]);
    server.run(&["credential", "delete", "rack-1"]).with(4).saying("machine");
    // asked with its key, and told of in every form
    let site = ["site", "create", "lab", "--url", "https://127.0.0.1:1/MAAS", "--credential", "lab-maas"];
    server.ok(&site);
    for words in [&["site", "check", "lab"][..], &["site", "show", "lab", "-o", "yaml"], &["site", "machines", "lab"]] {
        server.run(words);
    }
    server.run(&["credential", "delete", "lab-maas"]).with(4).saying("site");
    // a key in the place of an address
    let url = format!("https://admin:{}@127.0.0.1:1/MAAS", plant("siteurl"));
    server.run(&["site", "create", "odd", "--url", &url, "--credential", "lab-maas"]).with(2);
    server.ok(&["credential", "rotate-key"]);
    let listed = server.json(&["credential", "list"]);
    assert_eq!(listed["credentials"].as_array().map(Vec::len), Some(5), "{listed}");
    server.ok(&["credential", "delete", "by-rest"]);
    server.run(&["events", "--after", "0", "--limit", "200"]);
}

/// Keys that are none, from each place that a key comes from. The server starts, and refuses only what needs one.
fn spoilt_keys(stage: &Stage) {
    let secret = plant("kek");
    let file = stage.home.file("spoilt.key", &secret).display().to_string();
    let password = stage.home.file("password.key", &plant("bmc")).display().to_string();
    for config in [
        format!("[secrets]\nkey_file = '{file}'"),
        format!("[secrets]\nkey = '{secret}'"),
        format!("[secrets]\nkey_command = ['cat', '{file}']"),
        format!("[secrets]\nkey_command = ['sh', '-c', 'cat {file}; cat {file} >&2; exit 3']"),
        format!("[secrets]\nprevious_key_files = ['{file}']\nkey_file = '{file}'"),
    ] {
        let server = stage.home.launch("spoilt").config(&config).start();
        let words = ["credential", "set", "x", "--kind", "bmc", "--username", "u", "--password-file", &password];
        server.run(&words).with(4).saying("key");
        server.ok(&["credential", "list"]);
        server.terminate().with(0);
        let config = stage.home.path("spoilt.toml").display().to_string();
        stage.home.run(&["doctor", "--config", &config]).with(1);
    }
}

/// Starts that must fail, each with a secret in a place where a person would put it by mistake.
fn mistakes(stage: &Stage, key: &str) {
    let launch = |name: &str| stage.home.launch(name);
    let secret = plant("mistake");
    for text in [
        format!("[database]\npassword = {secret}"),
        format!("[database]\npassword = ['{secret}']\nurl = 'postgres://u@127.0.0.1:1/d'"),
        format!("[database]\nurl = 'postgres://u:{secret}@127.0.0.1:1/d'"),
        format!("[database]\nurl = 'postgres://u:{secret}@127.0.0.1:x/d'"),
        format!("[database]\nurl = 'host=127.0.0.1 password={secret} port=x'"),
        format!("database = '{secret}'"),
        format!("[telemetry]\notlp_endpoint = 'https://u:{secret}@127.0.0.1:1'"),
    ] {
        launch("mistake").config(&text).refused();
    }
    for url in [
        format!("postgres://u:{secret}@127.0.0.1:1/d"),
        format!("postgres://u:{secret}@[/d"),
        format!("password={secret} x"),
    ] {
        launch("mistake").with(&["--database", &url]).refused();
        let mut doctor = program(&stage.home.path(""));
        run(doctor.args(["doctor"]).env("MILLWRIGHT_DATABASE__URL", &url));
    }
    // nobody there, wrong password: the database's words are told, and not the password
    let away = launch("mistake").with(&["--database", "postgres://u@127.0.0.1:1/d"]);
    away.env("MILLWRIGHT_DATABASE__PASSWORD", &secret).refused();
    let cert = stage.home.path("tls.crt").display().to_string();
    for (name, text) in [
        ("line.key", key.replace('\n', "")),
        ("half.key", key[..key.len() / 2].to_owned()),
        ("odd.key", key.replace("-----BEGIN", "----BEGIN")),
    ] {
        let file = stage.home.file(name, &text).display().to_string();
        let config = format!("[tls]\ncert = '{cert}'\nkey = '{file}'");
        launch("mistake").config(&config).refused();
        let file = stage.home.file("mistake.toml", &config).display().to_string();
        stage.home.run(&["doctor", "--config", &file]);
    }
}

/// The tables of a shared database, every row as text.
fn dump(stage: &Stage, config: &tokio_postgres::Config) {
    let rows = stage.runtime.block_on(async {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connects");
        tokio::spawn(async move { drop(connection.await) });
        let tables = "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'";
        let mut rows = Vec::new();
        for table in client.query(tables, &[]).await.expect("listed") {
            let table: String = table.get(0);
            let found = client.query(&format!("SELECT t::text FROM \"{table}\" t"), &[]).await.expect("read");
            rows.extend(found.iter().map(|row| format!("{table} {}\n", row.get::<_, String>(0))));
        }
        rows
    });
    assert!(rows.len() > 50, "{} rows", rows.len());
    stage.keep("tables", rows.concat().as_bytes());
}

/// A whole life with everything in it.
fn live(stage: &Stage, launch: &Launch) -> PathBuf {
    let (collector, endpoint) = stage.runtime.block_on(Collector::start());
    let launch = launch
        .clone()
        .with(&["--sim", "2"])
        .env("MILLWRIGHT_TELEMETRY__OTLP_ENDPOINT", &endpoint)
        .env("OTEL_EXPORTER_OTLP_HEADERS", &format!("authorization=Bearer {}", plant("collector")));
    let server = launch.start();
    let tokens = tokens(stage, &server);
    credentials(stage, &server, &tokens[0]);
    by_command(stage, &server, &tokens);
    through_the_doors(stage, &server, &tokens);
    let mode = std::fs::metadata(&server.token_file).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "what holds a secret is for its owner");
    server.kill();
    // what a start after a kill says, and an end in order
    let server = launch.start();
    until("it looks again", || server.run(&["machine", "list"]).code.filter(|code| *code == 0));
    server.terminate().with(0);
    for span in collector.spans() {
        stage.keep("span", format!("{span:?}").as_bytes());
    }
    launch.data
}

fn searched(stage: &Stage) {
    let searched = canary::assert_none(stage.home.watched());
    assert!(
        searched.bytes > BYTES_AT_LEAST && searched.files > FILES_AT_LEAST,
        "too little was searched: {searched:?}"
    );
    let said = std::fs::read_dir(stage.home.watched().join(SAID)).expect("what was said").flatten();
    let logs: String =
        said.map(|e| String::from_utf8_lossy(&std::fs::read(e.path()).expect("read")).into_owned()).collect();
    for from in ["TRACE", "h2::", "hyper", "millwright_api"] {
        assert!(logs.contains(from), "nothing of {from} is in the logs: they are not at trace level");
    }
}

#[test]
fn no_secret_is_in_anything_that_an_embedded_server_wrote() {
    let stage = Stage::new();
    let data = live(&stage, &stage.home.launch("data"));
    let (data, file, copy) = (data.display().to_string(), stage.home.path("fleet.backup"), stage.home.path("copy"));
    let (file, copy) = (file.display().to_string(), copy.display().to_string());
    stage.home.run(&["backup", "--data", &data, &file]).with(0);
    stage.home.run(&["restore", "--data", &copy, &file]).with(0);
    stage.home.run(&["doctor", "--data", &data]);
    searched(&stage);
}

#[test]
fn no_secret_is_in_anything_that_a_server_on_a_shared_database_wrote() {
    let stage = Stage::new();
    let config = testkit::postgres::database();
    let password = stage.home.file("database.key", &plant("database"));
    let settings =
        format!("[database]\nurl = '{}'\npassword_file = '{}'\n", testkit::postgres::url(&config), password.display());
    // by the environment; the file is there for the search to know it
    let key = service::SecretKey::generate().expect("randomness").1;
    stage.home.file("environment.key", key.reveal());
    live(&stage, &stage.home.launch("data").config(&settings).env("MILLWRIGHT_SECRETS__KEY", key.reveal()));
    dump(&stage, &config);
    searched(&stage);
}

#[test]
fn no_secret_is_in_what_is_said_about_a_mistake() {
    let stage = Stage::new();
    let pair = Authority::default().pair();
    pair.write(&stage.home.path(""));
    mistakes(&stage, &pair.key);
    spoilt_keys(&stage);
    let config = format!(
        "[tls]\ncert = '{}'\nkey = '{}'",
        stage.home.path("tls.crt").display(),
        stage.home.path("tls.key").display()
    );
    // encrypted, at trace level, with a pair that is spoilt while it runs
    let server = stage.home.launch("data").config(&config).start();
    stage.home.file("tls.key", &pair.key.replace('\n', ""));
    until("the spoilt pair is told", || server.process.err().contains("cannot be used").then_some(()));
    server.terminate().with(0);
    let searched = canary::assert_none(stage.home.watched());
    assert!(searched.files > 40, "{searched:?}");
}

// the same search, where there is something to be found: in each kind of file that the others search
#[test]
fn a_secret_that_was_written_would_have_been_found() {
    let stage = Stage::new();
    let server = stage.home.launch("data").with(&["--sim", "1"]).start();
    let secret = plant("x");
    server.ok(&["machine", "update", "sim-0001", "--label", &format!("note={secret}")]);
    let bearer = format!("Bearer {}", std::fs::read_to_string(&server.token_file).expect("a token").trim());
    let shown =
        stage.runtime.block_on(web::get(&server.url, "/api/v1/machines/sim-0001", &[("authorization", &bearer)]));
    stage.keep("answer", shown.body.as_bytes());
    server.run(&["machine", "show", "sim-0001"]);
    server.terminate().with(0);
    let file = stage.home.path("fleet.backup").display().to_string();
    stage.home.run(&["backup", "--data", &stage.home.path("data").display().to_string(), &file]).with(0);
    let found = canary::search(stage.home.watched()).found;
    for place in ["data/millwright.db", "fleet.backup", "said/", "kept/"] {
        assert!(found.iter().any(|(file, _)| file.contains(place)), "not found in {place}: {found:?}");
    }
    // the folder is searched again when it is removed: this once it is emptied before
    for entry in std::fs::read_dir(stage.home.watched()).expect("a folder").flatten() {
        std::fs::remove_dir_all(entry.path()).expect("removed");
    }
}
