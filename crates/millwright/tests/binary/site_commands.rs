//! `millwright site` against a server: described by flags and by files, shown as it can be given back, and refused by name.

use crate::server::{Home, Server};
use testkit::canary::plant;

const URL: &str = "https://127.0.0.1:1/MAAS";

fn key(home: &Home, server: &Server) {
    let file = home.file("maas.key", &format!("a:b:{}", plant("maas"))).display().to_string();
    server.ok(&["credential", "set", "lab-maas", "--kind", "maas", "--api-key-file", &file]);
}

#[test]
fn a_site_is_made_shown_edited_and_removed() {
    let home = Home::new();
    let server = home.launch("data").start();
    let create =
        ["site", "create", "lab", "--url", URL, "--credential", "lab-maas", "--series", "noble", "--tag", "gpu"];
    server.run(&create).with(3).saying("no credential");
    key(&home, &server);
    server.ok(&[&create[..], &["--dry-run"]].concat());
    server.run(&["site", "show", "lab"]).with(3).saying("no site");
    server.ok(&create);
    let shown = server.ok(&["site", "show", "lab"]);
    assert!(shown.contains(URL) && shown.contains("noble") && shown.contains("lab-maas"), "{shown}");
    // what is shown can be given back as it is, in both forms
    for format in ["json", "yaml"] {
        let text = server.ok(&["site", "show", "lab", "-o", format]);
        let file = home.file(&format!("lab.{format}"), &text).display().to_string();
        server.ok(&["site", "edit", "lab", "--file", &file]);
        assert_eq!(server.json(&["site", "show", "lab"])["version"], "1", "no change is no version");
    }
    let old = home.path("lab.json").display().to_string();
    server.ok(&["site", "edit", "lab", "--poll", "7"]);
    assert_eq!(server.json(&["site", "show", "lab"])["policy"]["poll_seconds"], 7);
    server.run(&["site", "edit", "lab", "--file", &old]).with(4).saying("read it again");
    server.run(&["site", "edit", "lab", "--url", "https://a@b/MAAS"]).with(2).saying("url");
    server.run(&["site", "check", "lab"]).with(1).saying("failed");
    server.run(&["credential", "delete", "lab-maas"]).with(4).saying("site lab");
    assert_eq!(server.ok(&["site", "list", "-o", "name"]).trim(), "lab");
    assert_eq!(server.ok(&["site", "machines", "lab", "-o", "name"]).trim(), "");
    server.run(&["site", "machines", "lab", "abc123"]).with(3).saying("not listed yet");
    server.ok(&["site", "remove", "lab", "--dry-run"]);
    server.ok(&["site", "remove", "lab"]);
    server.run(&["site", "remove", "lab"]).with(3);
    server.terminate().with(0);
}

#[test]
fn a_file_says_more_than_flags_and_what_is_wrong_is_told_by_its_path() {
    let home = Home::new();
    let server = home.launch("data").start();
    key(&home, &server);
    let toml = format!(
        "name = 'lab'\nurl = '{URL}'\ncredentials_ref = 'lab-maas'\n[policy]\nerase = 'full'\n\
         [[profiles]]\nname = 'gpu'\nlayout = 'lvm'\ntags = ['gpu']\n[profiles.boot_disk]\nmodel = 'BOSS'\n\
         [[profiles]]\nname = 'cpu'\n"
    );
    let file = home.file("lab.toml", &toml).display().to_string();
    server.ok(&["site", "create", "--file", &file]);
    let shown = server.json(&["site", "show", "lab"]);
    assert_eq!(shown["profiles"][0]["boot_disk"]["model"], "BOSS", "{shown}");
    assert_eq!((&shown["policy"]["erase"], &shown["profiles"][1]["name"]), (&"full".into(), &"cpu".into()));
    for (name, text, part) in [
        ("a.toml", "name = 'x'\nurl =", "TOML"),
        ("b.toml", "nome = 'x'", "nome"),
        ("c.yaml", "profiles: [{name: a, layuot: x}]", "profiles[0].layuot"),
        ("d.yaml", "name: other\nprofiles: [{name: a}]", "about other"),
    ] {
        let file = home.file(name, text).display().to_string();
        server.run(&["site", "edit", "lab", "--file", &file]).with(2).saying(part);
    }
    let bad = toml.replace("['gpu']", "['a b']");
    let file = home.file("bad.toml", &bad).display().to_string();
    server.run(&["site", "edit", "lab", "--file", &file]).with(2).saying("profiles[0].tags[0]");
    server.terminate().with(0);
}
