//! The doctor on good setups and on broken ones: each fault is told, and nothing is changed by looking.

use crate::process::{Ended, program, run};
use crate::server::Home;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::SystemTime;

/// Everything below a folder: mode, size, and when it was written. The index of a log (`-shm`) is made anew
/// by whoever reads first, and says nothing that the log does not.
fn traces(folder: &Path) -> BTreeMap<String, (u32, u64, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.display().to_string();
        let known = std::fs::metadata(&path).expect("known");
        let index = name.ends_with("-shm");
        let written = if index { SystemTime::UNIX_EPOCH } else { known.modified().expect("a time") };
        found.insert(name, (known.permissions().mode(), known.len(), written));
        if known.is_dir() {
            found.extend(traces(&path));
        }
    }
    found
}

/// Looks, with an address that nobody else can have taken.
fn look(home: &Home, words: &[&str]) -> Ended {
    let mut command = program(&home.path(""));
    run(command.arg("doctor").args(words).env("MILLWRIGHT_SERVER__LISTEN", "127.0.0.1:0"))
}

fn checks(ended: &Ended) -> Vec<Value> {
    let value: Value = serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}\n{}", ended.out));
    value["checks"].as_array().expect("checks").clone()
}

/// The finding of an area; there must be one.
fn found(checks: &[Value], area: &str, status: &str) -> String {
    let fits = |check: &&Value| check["area"] == area && check["status"] == status;
    let check = checks.iter().find(fits).unwrap_or_else(|| panic!("no {status} of {area} in {checks:#?}"));
    format!("{} {}", check["what"].as_str().unwrap_or_default(), check["next"].as_str().unwrap_or_default())
}

#[test]
fn before_the_first_start_nothing_is_wrong_and_nothing_is_made() {
    let home = Home::new();
    let ended = look(&home, &[]).with(0);
    assert!(ended.out.contains("first start") && !ended.out.contains("FAIL"), "{}", ended.out);
    assert_eq!(traces(&home.path("")).len(), 0, "nothing was made");
}

#[test]
fn a_stopped_server_and_a_running_one_are_both_in_order() {
    let home = Home::new();
    let launch = home.launch("data").with(&["--sim", "1"]);
    let server = launch.start();
    let (url, token) = (server.url.clone(), server.token_file.display().to_string());
    let way = ["--server", &url, "--token-file", &token];
    let words = [&["--data", "data", "-o", "json"][..], &way].concat();
    let running = checks(&look(&home, &words).with(0));
    assert!(found(&running, "server", "ok").contains("is running"), "{running:#?}");
    found(&running, "database", "ok");
    found(&running, "integrity", "ok");
    found(&running, "token file", "ok");
    server.terminate().with(0);

    let before = traces(&home.path(""));
    let stopped = checks(&look(&home, &["--data", "data", "-o", "json"]).with(0));
    assert!(found(&stopped, "server", "skip").contains("none is running"), "{stopped:#?}");
    found(&stopped, "database", "ok");
    assert_eq!(traces(&home.path("")), before, "looking has changed something");
    // the way to a server that was named, and is not there
    let away = checks(&look(&home, &words).with(1));
    assert!(found(&away, "server", "FAIL").contains("cannot reach"), "{away:#?}");
}

#[test]
fn a_database_left_by_a_killed_server_is_looked_at_as_it_lies() {
    let home = Home::new();
    let server = home.launch("data").with(&["--sim", "2"]).start();
    server.kill();
    let names = |all: &BTreeMap<String, (u32, u64, SystemTime)>| all.keys().cloned().collect::<Vec<_>>();
    let before = names(&traces(&home.path("")));
    found(&checks(&look(&home, &["--data", "data", "-o", "json"]).with(0)), "integrity", "ok");
    assert_eq!(names(&traces(&home.path(""))), before, "nothing was made or taken away");
}

#[test]
fn each_fault_is_told_with_what_to_do() {
    let home = Home::new();
    home.launch("data").with(&["--sim", "1"]).start().terminate().with(0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    home.file("plans/bad.yaml", "plan_id: bad\nsteps:\n- {name: one, nap: {}}\n");
    std::fs::set_permissions(home.path("data/admin.token"), std::fs::Permissions::from_mode(0o644)).expect("set");
    // with its log it would be whole again
    drop(["-wal", "-shm"].map(|suffix| std::fs::remove_file(home.path(&format!("data/millwright.db{suffix}")))));
    std::fs::write(home.path("data/millwright.db"), "this was a database once, and is none now").expect("written");
    let config = home.file(
        "server.toml",
        &format!("[server]\ndata = 'data'\nlisten = '127.0.0.1:{port}'\n[plans]\nfolder = 'plans'\n[providers.sim]\njournal = '/nowhere/world'\n"),
    );
    let config = config.display().to_string();
    let all = checks(&home.run(&["doctor", "--config", &config, "-o", "json"]).with(1));
    for (area, part) in [
        ("token file", "chmod 600"),
        ("database", "millwright restore"),
        ("plans", "bad.yaml"),
        ("plans", "steps[0].nap"),
        ("provider", "/nowhere/world"),
        ("address", "another program"),
    ] {
        let told = found(&all, area, "FAIL");
        assert!(told.contains(part), "{area}: {told}");
    }
    let table = home.run(&["doctor", "--config", &config]).with(1).out;
    assert!(table.lines().any(|line| line.starts_with("FAIL  token file")), "{table}");
    assert!(table.ends_with("failed\n"), "{table}");
}

#[test]
fn a_wrong_configuration_is_told_without_its_secrets() {
    let home = Home::new();
    let config = home.file(
        "server.toml",
        "[database]\nurl = 'postgres://u@h/d'\npassword = 'geheim-1'\npasword_file = 'geheim-1'\n",
    );
    let mut command = program(&home.path(""));
    command.args(["doctor", "--config"]).arg(config);
    command.env("MILLWRIGHT_DATABASE__PASSWORD", "geheim-2").env("MILLWRIGHT_ENGINE__WORKERS", "many");
    let ended = run(&mut command).with(1);
    assert!(ended.out.contains("pasword_file") || ended.out.contains("workers"), "{}", ended.out);
    assert!(ended.out.contains("MILLWRIGHT_DATABASE__PASSWORD"), "overrides are named: {}", ended.out);
    assert!(!ended.out.contains("geheim") && !ended.err.contains("geheim"), "{}{}", ended.out, ended.err);

    let config = home.file("url.toml", "[database]\nurl = 'postgres://u:geheim-3@127.0.0.1:1/d'\n");
    let ended = home.run(&["doctor", "--config", &config.display().to_string()]).with(1);
    assert!(ended.out.contains("database.url holds the password") && !ended.out.contains("geheim"), "{}", ended.out);
}

#[test]
fn a_level_that_would_silence_the_log_is_told() {
    let home = Home::new();
    let config = home.file("server.toml", "[log]\nlevel = 'loud'\n").display().to_string();
    let all = checks(&home.run(&["doctor", "--config", &config, "-o", "json"]).with(1));
    let told = found(&all, "configuration", "FAIL");
    assert!(told.contains("log.level") && told.contains("off, error, warn, info, debug, trace"), "{told}");
}

#[test]
fn an_address_that_serve_refuses_is_a_failure() {
    let home = Home::new();
    let config = home.file("server.toml", "[server]\ndata = 'data'\nlisten = '0.0.0.0:0'\n").display().to_string();
    let all = checks(&home.run(&["doctor", "--config", &config, "-o", "json"]).with(1));
    let told = found(&all, "address", "FAIL");
    assert!(told.contains("serve refuses") && told.contains("--allow-plaintext"), "{told}");
}

#[test]
fn a_shared_database_that_does_not_answer_is_told() {
    let home = Home::new();
    let password = home.file("password", "geheim");
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o644)).expect("set");
    let config = home.file(
        "server.toml",
        "[server]\ndata = 'data'\n[database]\nurl = 'postgres://u@127.0.0.1:1/d'\npassword_file = 'password'\n",
    );
    let all = checks(&home.run(&["doctor", "--config", &config.display().to_string(), "-o", "json"]).with(1));
    assert!(found(&all, "database", "FAIL").contains("postgres://u@127.0.0.1:1/d"), "{all:#?}");
    assert!(found(&all, "password file", "FAIL").contains("chmod 600"), "{all:#?}");
}

#[test]
fn a_shared_database_is_looked_at_and_not_brought_forward() {
    let home = Home::new();
    let url = crate::shared_database::database();
    let config = home
        .file("server.toml", &format!("[server]\ndata = 'data'\nlisten = '127.0.0.1:0'\n[database]\nurl = '{url}'\n"));
    let words = ["doctor", "--config", &config.display().to_string(), "-o", "json"].map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for _ in 0..2 {
        let empty = checks(&home.run(&words).with(0));
        assert!(found(&empty, "database", "skip").contains("PostgreSQL"), "{empty:#?}");
    }
    home.launch("data").with(&["--database", &url]).start().terminate().with(0);
    assert!(found(&checks(&home.run(&words).with(0)), "database", "ok").contains("schema"));
}

#[test]
fn only_the_way_to_the_server_is_looked_at_when_that_is_asked_for() {
    let home = Home::new();
    home.file("millwright-data/admin.token", "mwt_x");
    let ended = home.run(&["doctor", "--client", "--server", "127.0.0.1:1", "--token", "mwt_y"]).with(1);
    assert!(!ended.out.contains("data folder") && ended.out.contains("FAIL  server"), "{}", ended.out);
    assert!(!ended.out.contains("mwt_y"), "{}", ended.out);
    home.run(&["doctor", "--client", "--data", "x"]).with(2);
}
