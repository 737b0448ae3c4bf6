//! Configuration: mistakes stop the start and name what is wrong; what is right takes effect.

use crate::server::Home;

#[test]
fn a_mistake_in_the_file_is_named_by_its_key() {
    let home = Home::new();
    for (text, key) in [
        ("[server]\nlisen = 'x'", "lisen"),
        ("[engine]\nworkers = 'many'", "workers"),
        ("[engine]\ncall_timeout_seconds = 20", "engine.call_timeout_seconds"),
        ("[providers.dc]\nkind = 'telepathy'", "providers.dc.kind"),
        ("[shutdown]\nactive_runs = 'panic'", "active_runs"),
        ("[log]\nlevel = 'loud=very=much'", "log.level"),
        ("[log]\nlevel = 'loud'", "log.level: \"loud\" is not a level"),
        ("[log]\nlevel = 'info,millwright_engine=loud'", "log.level"),
        ("[database]\nurl = 'mysql://h/d'", "database.url"),
        ("[database]\nurl = 'postgres://u:secret@h/d'", "database.url"),
        ("[plans]\nfolder = 'nowhere'", "nowhere"),
    ] {
        let refused = home.launch("data").config(text).refused();
        assert!(refused.err.contains(key), "{key} is not named:\n{}", refused.err);
        assert!(!refused.err.contains("secret"), "a secret is shown:\n{}", refused.err);
    }
    let missing = home.launch("data").with(&["--config", "nowhere.toml"]).refused();
    assert!(missing.err.contains("nowhere.toml"), "{}", missing.err);
    let broken = home.launch("data").config("[server").refused();
    assert!(broken.err.contains("data.toml"), "the file is named:\n{}", broken.err);
}

#[test]
fn a_mistake_in_the_environment_is_named_too() {
    let home = Home::new();
    for value in ["0", "many"] {
        let refused = home.launch("data").env("MILLWRIGHT_ENGINE__WORKERS", value).refused();
        assert!(refused.err.contains("workers"), "{}", refused.err);
    }
    let refused = home.launch("data").env("MILLWRIGHT_NO_SUCH__KEY", "1").refused();
    assert!(refused.err.contains("no_such"), "{}", refused.err);
}

#[test]
fn an_address_that_others_can_reach_needs_a_word_of_consent() {
    let home = Home::new();
    let refused = home.launch("data").listen("0.0.0.0:0").refused();
    assert!(refused.err.contains("--allow-plaintext"), "{}", refused.err);
    // nothing is left behind that would hinder the next start
    home.launch("data").start();
}

#[test]
fn the_environment_goes_over_the_file_and_flags_go_over_both() {
    let home = Home::new();
    let launch = home.launch("flagged").config("[server]\ndata = 'filed'\nlisten = '127.0.0.1:1'");
    let server = launch.env("MILLWRIGHT_SERVER__DATA", "environed").start();
    assert!(server.token_file.starts_with(home.path("flagged")) && server.token_file.exists());
    assert!(!home.path("filed").exists() && !home.path("environed").exists());
}

const PLAN: &str = "plan_id: twice\nsteps:\n- {name: one, reboot: {mode: bmc}}\n- {name: two, reboot: {mode: force}}\n";

#[test]
fn plans_are_read_from_their_folder_at_every_start() {
    let home = Home::new();
    home.file("plans/twice.yaml", PLAN);
    home.file("plans/notes.txt", "not a plan");
    let launch = home.launch("data").with(&["--sim", "1"]).config("[plans]\nfolder = 'plans'");
    let server = launch.start();
    assert_eq!(server.json(&["plan", "show", "twice"])["steps"][1]["name"], "two");
    server.ok(&["run", "start", "sim-0001", "--type", "REBOOT", "--plan", "twice", "--wait"]);
    server.terminate().with(0);
    home.file("plans/more.json", r#"{"plan_id": "more", "steps": [{"name": "one", "reboot": {"mode": "bmc"}}]}"#);
    let server = launch.start();
    let plans = server.ok(&["plan", "list", "-o", "name"]);
    assert!(plans.contains("twice\n") && plans.contains("more\n") && plans.contains("default-repave\n"), "{plans}");
}

#[test]
fn a_bad_plan_file_stops_the_start_and_is_named_with_the_field() {
    let home = Home::new();
    let launch = home.launch("data").config("[plans]\nfolder = 'plans'");
    for (text, field) in [
        ("plan_id: bad\nsteps:\n- {name: one, nap: {}}\n", "steps[0].nap"),
        ("plan_id: bad\nsteps:\n- {name: one, reboot: {mode: hard}}\n", "mode"),
        ("plan_id: bad\nsteps: []\n", "steps"),
        ("plan_id: bad\nsteps:\n- {name: a, reboot: {mode: bmc}}\n- {name: a, reboot: {mode: bmc}}\n", "steps[1]"),
        ("plan_id: default-repave\nsteps:\n- {name: a, reboot: {mode: bmc}}\n", "default-repave"),
    ] {
        home.file("plans/good.yaml", PLAN);
        home.file("plans/bad.yaml", text);
        let refused = launch.refused();
        assert!(refused.err.contains("bad.yaml") && refused.err.contains(field), "{field}:\n{}", refused.err);
    }
}

/// A plan never changes: a file that was changed under the same id must not pass silently.
#[test]
fn a_plan_file_that_was_changed_is_refused_at_the_next_start() {
    let home = Home::new();
    home.file("plans/twice.yaml", PLAN);
    let launch = home.launch("data").config("[plans]\nfolder = 'plans'");
    launch.start().terminate().with(0);
    home.file("plans/twice.yaml", &PLAN.replace("force", "inband"));
    let refused = launch.refused();
    assert!(refused.err.contains("twice"), "{}", refused.err);
}
