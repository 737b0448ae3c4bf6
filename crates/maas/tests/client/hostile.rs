//! Answers that are meant to harm: other types than MAAS has, huge, deep, with tricks for terminals and for paths. They are
//! refused, or what is taken of them is clean. And mutations of a good answer, as many as `MAAS_FUZZ_ROUNDS` says (by
//! default 1,500), from a seed that the failure names.

use crate::fixtures::{ID, MAC, client, machine};
use crate::server::{Reply, Server};
use provider::{MaasMachine, Which};
use std::sync::{Arc, Mutex};

async fn read(body: impl Into<Vec<u8>>) -> Result<MaasMachine, String> {
    let body = body.into();
    let server = Server::start(move |_| Reply::json(body.clone())).await;
    match client(&server.url).machine(ID).await {
        Ok(machine) => Ok(machine.expect("there")),
        Err(no) => Err(no.to_string()),
    }
}

fn texts(machine: &MaasMachine) -> Vec<&str> {
    let m = machine;
    let plain = [
        &m.system_id,
        &m.hostname,
        &m.fqdn,
        &m.description,
        &m.status_name,
        &m.status_message,
        &m.power_state,
        &m.power_type,
        &m.owner,
        &m.hardware_uuid,
        &m.serial,
        &m.architecture,
        &m.osystem,
        &m.distro_series,
        &m.pool,
        &m.zone,
        &m.hardware_sync.last_sync,
    ];
    let mut all: Vec<&str> = plain.iter().map(|text| text.as_str()).collect();
    all.extend(m.ip_addresses.iter().chain(&m.tags).map(String::as_str));
    all.extend(m.annotations.iter().flat_map(|(name, text)| [name.as_str(), text.as_str()]));
    for i in &m.interfaces {
        all.extend([i.name.as_str(), &i.mac, &i.kind]);
        all.extend(i.tags.iter().map(String::as_str));
        all.extend(i.links.iter().flat_map(|l| [l.mode.as_str(), &l.subnet_name, &l.cidr, &l.ip_address]));
    }
    for d in &m.disks {
        all.extend([d.name.as_str(), &d.path, &d.model, &d.serial]);
        all.extend(d.tags.iter().map(String::as_str));
    }
    all
}

/// Whatever was read is fit to be shown, kept and asked about.
#[track_caller]
fn assert_clean(machine: &MaasMachine, about: &str) {
    assert!((1..=32).contains(&machine.system_id.len()), "{about}");
    assert!(machine.system_id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()), "{about}");
    for text in texts(machine) {
        assert!(text.chars().count() <= 257, "{about}: {} characters", text.chars().count());
        let bad = |c: char| {
            c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c)
        };
        assert!(!text.chars().any(bad), "{about}: {text:?}");
    }
}

#[tokio::test]
async fn what_is_of_another_kind_is_refused() {
    for (from, to) in [
        (r#""status": 6"#, r#""status": "6""#),
        (r#""status": 6"#, r#""status": null"#),
        (r#""status": 6"#, r#""status": 6.5"#),
        (r#""status": 6"#, r#""status": 99999999999999999999"#),
        (r#""status": 6,"#, ""),
        (r#""status": 6"#, r#""status": 6, "status": 4"#),
        (r#""hostname": "one""#, r#""hostname": {"a": 1}"#),
        (r#""owner": "admin""#, r#""owner": 7"#),
        (r#""locked": false"#, r#""locked": "no""#),
        (r#""tag_names": ["gpu"]"#, r#""tag_names": "gpu""#),
        (r#""ip_addresses": ["10.20.0.2"]"#, r#""ip_addresses": [["10.20.0.2"]]"#),
        (r#""size": 250000000000"#, r#""size": -1"#),
        (r#""workload_annotations": {"mw": "1"}"#, r#""workload_annotations": ["mw"]"#),
        (r#""pool": {"id": 0, "name": "default"}"#, r#""pool": "default""#),
        (r#""effective_mtu": 1500"#, r#""effective_mtu": 99999999999"#),
    ] {
        assert!(machine().contains(from), "{from}");
        let no = read(machine().replace(from, to)).await.expect_err(to);
        assert!(no.contains("cannot be understood") && no.contains("reading machine 4g4aaq"), "{to}: {no}");
    }
}

#[tokio::test]
async fn an_id_that_would_lead_elsewhere_is_never_taken_and_never_asked_by() {
    let server = Server::start(|_| Reply::json("[]")).await;
    let maas = client(&server.url);
    for bad in ["", "../x", "a/b", "a?op=release", "A", "a b", "a%2f", "ü", "a\n", "..", &"a".repeat(33)] {
        let body = machine().replace(&format!("\"system_id\": \"{ID}\""), &format!("\"system_id\": {bad:?}"));
        let listed = format!("[{body}]");
        let site = Server::start(move |_| Reply::json(listed.clone())).await;
        let no = client(&site.url).machines(&Which::All).await.expect_err(bad);
        assert!(no.to_string().contains("cannot be understood"), "{bad}: {no}");
        assert!(maas.machine(bad).await.is_err(), "{bad}");
        assert!(maas.power_off(bad).await.is_err(), "{bad}");
        assert!(maas.delete(bad).await.is_err(), "{bad}");
        assert!(maas.machines(&Which::Ids(vec![bad.to_owned()])).await.is_err(), "{bad}");
        assert!(maas.events(None, "", &[bad.to_owned()]).await.is_err(), "{bad}");
        assert!(maas.tag(bad, "gpu").await.is_err(), "{bad}");
        assert!(maas.tag(ID, &format!("{bad}/")).await.is_err(), "{bad}");
    }
    assert_eq!(server.asked().len(), 0, "nothing of it was ever sent");
}

#[tokio::test]
async fn tricks_in_texts_are_cleaned_and_long_ones_cut() {
    let tricky = "\\u001b[2J\\u0007one\\r\\n\\u202eevil\\u0000";
    let body = machine().replace("\"hostname\": \"one\"", &format!("\"hostname\": \"{tricky}\""));
    let body = body.replace("rack 4", &"x".repeat(100_000));
    let machine = read(body).await.expect("read");
    assert_clean(&machine, "tricks");
    assert_eq!(machine.hostname, "[2J one evil");
    assert_eq!(machine.description.chars().count(), 257);
    let server = Server::start(|_| Reply::text(409, "no \u{1b}]0;title\u{7}\r\nway \u{202e}back")).await;
    let no = client(&server.url).abort(ID, "").await.expect_err("no").to_string();
    assert!(no.contains("no ]0;title way back") && !no.contains('\u{1b}') && !no.contains('\n'), "{no:?}");
}

#[tokio::test]
async fn what_is_too_deep_or_too_much_is_refused_without_being_held() {
    let deep = machine().replacen('{', &format!("{{\"x\": {}{},", "[".repeat(100_000), "]".repeat(100_000)), 1);
    let whole = read(deep.clone()).await;
    assert!(whole.is_err() || whole.is_ok_and(|machine| machine.system_id == ID), "it did not fall over");
    let interfaces = vec![r#"{"id": 1}"#; 5000].join(",");
    let many = machine().replace("\"interface_set\": [", &format!("\"interface_set\": [{interfaces}, "));
    assert!(read(many).await.is_err());
    for list in
        [format!("[{deep}]"), format!("[{}", machine()), "[".repeat(100_000), "<html>".to_owned(), String::new()]
    {
        let server = Server::start(move |_| Reply::json(list.clone())).await;
        assert!(client(&server.url).machines(&Which::All).await.is_err());
    }
}

#[tokio::test]
async fn machines_that_were_not_asked_for_are_no_answer() {
    let all = format!("[{}, {}]", machine(), machine().replace(ID, "other1").replace(MAC, "52:54:00:00:00:01"));
    let server = Server::start(move |_| Reply::json(all.clone())).await;
    let maas = client(&server.url);
    assert_eq!(maas.machines(&Which::All).await.expect("both").len(), 2);
    let no = maas.machines(&Which::Macs(vec![crate::fixtures::mac()])).await.expect_err("a filter that does nothing");
    assert!(no.to_string().contains("not asked for"), "{no}");
    assert!(maas.machines(&Which::Ids(vec![ID.to_owned()])).await.is_err());
}

/// As a site of 5,000 machines lists them: some 50 MB.
#[tokio::test]
async fn a_large_list_is_read_entry_by_entry() {
    let filler = format!("\"filler\": \"{}\", \"hostname\"", "x".repeat(8_000));
    let one = machine().replace("\"hostname\"", &filler);
    let all: Vec<String> = (0..5_000).map(|n| one.replace(ID, &format!("m{n}"))).collect();
    let body: Arc<Vec<u8>> = Arc::new(format!("[{}]", all.join(", ")).into_bytes());
    drop(all);
    assert!(body.len() > 45_000_000, "{}", body.len());
    let server = Server::start(move |_| Reply::json(body.to_vec())).await;
    let machines = client(&server.url).machines(&Which::All).await.expect("all");
    assert_eq!((machines.len(), machines[4_999].system_id.as_str()), (5_000, "m4999"));
}

/// xorshift: the same for the same seed everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(below.max(1)).expect("small")).expect("small")
    }
}

fn mutated(dice: &mut Dice, from: &[u8]) -> Vec<u8> {
    const PIECES: [&str; 16] = [
        "null",
        "-1",
        "1e999",
        "\"\"",
        "[]",
        "{}",
        "\\u0000",
        "\\ud800",
        "\"../..\"",
        "true",
        "99999999999999999999",
        "[[[[[[",
        "\u{202e}",
        "\"system_id\": \"zz\",",
        ",",
        "}",
    ];
    let mut bytes = from.to_vec();
    for _ in 0..=dice.roll(4) {
        let at = dice.roll(bytes.len());
        match dice.roll(5) {
            0 => bytes[at] = u8::try_from(dice.roll(256)).expect("a byte"),
            1 => bytes.truncate(at),
            2 => {
                let end = (at + dice.roll(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            3 => {
                let piece = PIECES[dice.roll(PIECES.len())];
                bytes.splice(at..at, piece.bytes());
            }
            _ => {
                let (from, length) = (dice.roll(bytes.len()), dice.roll(60));
                let copy = bytes[from..(from + length).min(bytes.len())].to_vec();
                bytes.splice(at..at, copy);
            }
        }
        if bytes.is_empty() {
            return bytes;
        }
    }
    bytes
}

#[tokio::test]
async fn no_mutation_of_a_good_answer_is_taken_for_what_it_is_not() {
    let rounds: u64 = std::env::var("MAAS_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_500);
    let body: Arc<Mutex<Vec<u8>>> = Arc::default();
    let next = body.clone();
    let server = Server::start(move |asked| {
        let one = next.lock().expect("whole").clone();
        match asked.path.as_str() {
            "machines/" => Reply::json([b"[".as_slice(), &one, b"]"].concat()),
            _ => Reply::json(one),
        }
    })
    .await;
    let options = maas::Options { repeats: 0, ..crate::fixtures::options() };
    let clients = maas::Clients::new(options);
    let access = crate::fixtures::access("oslo", &server.url);
    let maas = provider::MaasClients::client(&clients, &access).expect("a client");
    let (mut taken, mut refused) = (0, 0);
    for seed in 1..=rounds {
        *body.lock().expect("whole") =
            mutated(&mut Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), machine().as_bytes());
        match maas.machine(ID).await {
            Ok(Some(read)) => {
                taken += 1;
                assert_eq!(read.system_id, ID, "seed {seed}");
                assert_clean(&read, &format!("seed {seed}"));
            }
            Ok(None) => panic!("seed {seed}: it was taken for gone"),
            Err(no) => {
                refused += 1;
                assert!(!no.to_string().chars().any(char::is_control), "seed {seed}: {no}");
            }
        }
        for read in maas.machines(&Which::All).await.unwrap_or_default() {
            assert_clean(&read, &format!("seed {seed}, listed"));
        }
    }
    assert!(taken > 0 && refused > 0, "{taken} were taken, {refused} refused");
}
