//! Many machines of a MAAS at once, by a file and by a filter: shown first, done when it is said so, each with its own result.

use crate::agents_site::{Site, eventually};
use testkit::maas_sim::{MaasSim, Options, Racked};
use tokio::runtime::Runtime;

fn mac(number: u8) -> String {
    format!("52:54:00:77:00:{number:02x}")
}

fn bmc(number: u8) -> String {
    format!("10.9.7.{number}")
}

#[test]
fn many_are_shown_first_and_each_has_its_own_result() {
    let runtime = Runtime::new().expect("a runtime");
    let sim = runtime.block_on(MaasSim::start(Options::default()));
    (1..=5).for_each(|n| sim.rack(Racked::new(&mac(n), &bmc(n))));
    // two that MAAS has and nobody uses, one that somebody has, and one that is gone again
    let found: Vec<String> =
        (3..=5).map(|n| sim.as_somebody().create(&format!("found-{n}"), &mac(n), &bmc(n))).collect();
    for id in &found {
        sim.as_somebody().commission(id);
        sim.finish(id);
    }
    sim.as_somebody().deploy(&found[2], "noble");
    sim.finish(&found[2]);

    let site = Site::new();
    let server = site.start();
    let key = site.home.file("maas.key", &sim.key()).display().to_string();
    let password = site.home.file("bmc.password", "p").display().to_string();
    server.ok(&["credential", "set", "ams-key", "--kind", "maas", "--api-key-file", &key]);
    server.ok(&["credential", "set", "bmc", "--kind", "bmc", "--username", "u", "--password-file", &password]);
    let described = serde_json::json!({
        "name": "ams", "url": sim.url(), "credentials_ref": "ams-key", "policy": {"poll_seconds": 1},
        "profiles": [{"name": "gpu", "series": "noble", "agent_url": "http://127.0.0.1:9/agent", "agent_sha256": "ab".repeat(32)}],
    });
    let file = site.home.file("ams.json", &described.to_string()).display().to_string();
    server.ok(&["site", "create", "--file", &file]);
    let listed = || server.json(&["site", "machines", "ams"])["machines"].as_array().map_or(0, Vec::len);
    eventually("the site to be listed", || (listed() == 3).then_some(()));

    // by a filter: those that somebody has are theirs
    let all = ["node", "onboard", "--site", "ams", "--filter", "status_name=Ready OR status_name=Deployed"];
    let preview = server.run(&all).with(4).out;
    assert!(preview.contains("found-3") && preview.contains("found-4") && !preview.contains("found-5"), "{preview}");
    assert_eq!(server.json(&["node", "list"])["nodes"].as_array().map_or(0, Vec::len), 0, "nothing was done");
    server
        .run(&["node", "onboard", "--site", "ams", "--filter", "status_name=Broken"])
        .with(2)
        .saying("nothing to onboard");
    server.run(&["node", "onboard", "--site", "ams", "--filter", "nonsense=1"]).with(2).saying("nonsense");

    // by a file: one row is wrong, and the others are begun
    let rows = format!(
        "name, mac, bmc\ng1, {}, {}\ng2, {}, {}\nno card, ff:ff:ff:ff:ff:ff, 10.9.7.9\n",
        mac(1),
        bmc(1),
        mac(2),
        bmc(2)
    );
    let file = site.home.file("rack.csv", &rows).display().to_string();
    let many = ["node", "onboard", "--site", "ams", "--csv", &file, "--power", "redfish", "--credential", "bmc"];
    let preview = server.run(&many).with(4).out;
    assert!(preview.contains("g1") && preview.contains("no card's MAC address"), "{preview}");
    assert_eq!(sim.machines().len(), 3, "nothing was done");
    let done = server.run(&[many.as_slice(), &["--yes", "-o", "json"]].concat()).with(4).out;
    let done: serde_json::Value = serde_json::from_str(&done).expect("JSON");
    let results = done["results"].as_array().expect("results");
    let ok: Vec<bool> = results.iter().map(|result| result["ok"].as_bool().unwrap_or(false)).collect();
    assert_eq!(ok, [true, true, false], "{done:#}");
    eventually("both to be in MAAS", || (sim.machines().len() == 5).then_some(()));
    // again: what is there is told, and nothing is made twice
    let again = server.run(&[many.as_slice(), &["--yes"]].concat()).with(4).out;
    assert!(again.contains("names are used once"), "{again}");
    assert_eq!(sim.machines().len(), 5);
    let wrong = site.home.file("wrong.csv", "nome\nx\n").display().to_string();
    server.run(&["node", "onboard", "--site", "ams", "--csv", &wrong]).with(2).saying("no column \"nome\"");
    server.terminate().with(0);
}
