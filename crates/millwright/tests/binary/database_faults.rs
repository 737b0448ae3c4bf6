//! PostgreSQL fails over beneath a server that runs, and beneath one that starts. (Every other fault of it is tried
//! in one process, in `testkit`'s `postgres_faults`.)

use crate::audit::World;
use crate::boot_commands::http;
use crate::fleet::text;
use crate::process::until;
use crate::server::{Home, QUICK, Server};
use testkit::postgres::encoded;
use testkit::postgres::{Cluster, Durability};
use tokio_postgres::config::Host;

const MACHINES: usize = 4;
/// The command's exit code for what is away.
const UNAVAILABLE: i32 = 6;
const ONCE: [&str; 4] = ["netboot", "repave_started", "repaved", "reset"];

/// Both servers, in this order.
fn url(servers: [&Cluster; 2], database: &str) -> String {
    let sockets = servers.map(|server| match server.config(database).get_hosts() {
        [Host::Unix(path)] => encoded(&path.display().to_string()),
        other => panic!("{other:?}"),
    });
    format!("postgres://postgres@{}/{database}", sockets.join(","))
}

/// A command that only looks works again.
fn until_it_answers(server: &Server) {
    until("the server answers again", || (server.run(&["run", "list"]).code == Some(0)).then_some(()));
}

#[test]
fn a_server_goes_on_with_the_standby_and_finds_it_when_it_is_started_again() {
    let home = Home::new();
    let primary = Cluster::start(Durability::Stock);
    let database = primary.database().get_dbname().expect("a name").to_owned();
    let standby = primary.with_standby();
    let world = World(home.path("world.jsonl"));
    let config = format!("{QUICK}[providers.sim]\nenabled = true\njournal = '{}'\n", world.0.display());
    let launch = home.launch("data").with(&["--database", &url([&primary, &standby], &database)]).config(&config);
    let server = launch.start();
    for n in 0..MACHINES {
        server.register(&format!("m-{n}"), &["sim.latency_ms=300"]);
        server.start(&format!("m-{n}"), "REPAVE");
    }
    world.wait_for("repave_started", 1);
    primary.kill();
    server.run(&["machine", "list"]).with(UNAVAILABLE).saying("STORE_UNAVAILABLE");
    // a machine that boots now is told to wait, and that not for ever
    let boots = |query: &str| {
        let (status, script) =
            http(&server.url, "GET", &format!("/api/v1/boot?mac=52:54:00:b0:07:09{query}"), None, b"");
        assert!(status == 200 && script.starts_with("#!ipxe\necho Millwright: "), "{status} {script}");
        script
    };
    let waits = boots("");
    assert!(waits.contains("sleep ") && waits.contains(&format!("{}/boot.ipxe?tries=1 ", server.url)), "{waits}");
    let gives_up = boots("&tries=29");
    assert!(gives_up.ends_with("exit\n") && !gives_up.contains("chain"), "{gives_up}");
    standby.promote();
    until_it_answers(&server);
    let runs = server.all_succeed();
    assert_eq!(runs.len(), MACHINES);
    world.each_once(&ONCE, &server.executions());

    // the old primary is back, is the first of the list, and knows nothing of its successor; nor does a new process
    primary.start_again();
    server.kill();
    let server = launch.start();
    assert_eq!(server.runs(), runs, "all that was done is there");
    let run = server.start("m-0", "REBOOT");
    assert_eq!(text(&server.ended(&run), "phase"), "SUCCEEDED");
}
