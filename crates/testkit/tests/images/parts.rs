//! Parts of an image, as `curl` gets them: compared with what `curl` makes of the very file, without a server.

use crate::child::{Server, content, is_played, one_image, sha256sum, this_test, wait_until};
use std::path::Path;
use std::process::{Command, Output};

fn curl(arguments: &[&str]) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "120"]).args(arguments);
    curl.output().expect("curl is there (apt-get install -y --no-install-recommends curl)")
}

/// Status and body, with the headers that are asked for.
fn get(url: &str, arguments: &[&str]) -> (u16, Vec<u8>) {
    let out = curl(&[&["--write-out", "%{stderr}%{http_code}", url][..], arguments].concat());
    let status = String::from_utf8_lossy(&out.stderr).parse().unwrap_or_else(|_| panic!("{out:?}"));
    (status, out.stdout)
}

fn header(url: &str, name: &str, arguments: &[&str]) -> Option<String> {
    let out = curl(&[&["--dump-header", "-", "--output", "/dev/null", url][..], arguments].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let of =
        |line: &str| line.split_once(": ").filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.to_owned());
    text.lines().find_map(of)
}

#[test]
fn curl_gets_the_parts_that_it_asks_for() {
    if is_played() {
        return;
    }
    let bytes = content(700_001);
    let (folder, path) = one_image(&bytes);
    let server = Server::start(this_test!(), folder.path());
    let (url, last) = (server.url(&path), bytes.len() - 1);
    let file = format!("file://{}/{}", folder.path().display(), path.trim_start_matches("/images/"));
    let mut ranges: Vec<String> = ["0-0", "0-99", "1-", "-1", "-700001", "262143-262144"].map(str::to_owned).into();
    ranges.extend([format!("{last}-"), format!("{last}-{last}"), format!("0-{last}")]);
    for range in &ranges {
        let (status, body) = get(&url, &["--range", range]);
        let reference = curl(&["--range", range, &file]);
        assert!(reference.status.success() && !reference.stdout.is_empty(), "{range}: {reference:?}");
        assert!(status == 206 && body == reference.stdout, "{range}: {status}, {} bytes", body.len());
    }
    // what a file by itself has not, an image has as far as it goes
    assert!(get(&url, &["--range", "5-900000"]) == (206, bytes[5..].to_vec()));
    assert!(get(&url, &["--range", "-900000"]) == (206, bytes.clone()));
    assert!(get(&url, &[]) == (200, bytes.clone()));
    assert_eq!(get(&url, &["--range", "700001-"]).0, 416);
    assert_eq!(header(&url, "content-range", &["--range", "700001-"]).as_deref(), Some("bytes */700001"));
    assert_eq!(header(&url, "content-range", &["--range", "10-19"]).as_deref(), Some("bytes 10-19/700001"));
    assert_eq!(header(&url, "content-length", &["--range", "10-19"]).as_deref(), Some("10"));
    // several at once: the whole
    assert!(get(&url, &["--range", "0-1,5-6"]) == (200, bytes.clone()));
    // a head has the length and no body
    assert_eq!(header(&url, "content-length", &["--head"]).as_deref(), Some("700001"));
}

#[test]
fn conditions_and_names_are_kept() {
    if is_played() {
        return;
    }
    let bytes = content(10_000);
    let (folder, path) = one_image(&bytes);
    let server = Server::start(this_test!(), folder.path());
    let (by_digest, by_name) = (server.url(&path), server.url("/images/the-image"));
    let tag = format!("\"{}\"", path.rsplit('/').next().expect("a digest"));
    for url in [&by_digest, &by_name] {
        assert!(get(url, &[]) == (200, bytes.clone()));
        assert_eq!(header(url, "etag", &[]).as_deref(), Some(tag.as_str()));
        assert_eq!(header(url, "accept-ranges", &[]).as_deref(), Some("bytes"));
        assert_eq!(get(url, &["--header", &format!("If-None-Match: {tag}")]), (304, Vec::new()));
        assert_eq!(get(url, &["--header", "If-Match: \"other\""]).0, 412);
        let part = get(url, &["--range", "0-9", "--header", &format!("If-Range: {tag}")]);
        assert!(part == (206, bytes[..10].to_vec()));
        // resumed after somebody gave the name to another image: from the beginning
        assert!(get(url, &["--range", "0-9", "--header", "If-Range: \"other\""]) == (200, bytes.clone()));
        assert_eq!(get(url, &["--request", "POST", "--data", "x"]).0, 405);
    }
    assert_eq!(header(&by_name, "content-location", &[]).as_deref(), Some(path.as_str()));
    assert!(header(&by_digest, "cache-control", &[]).is_some_and(|value| value.contains("immutable")));
    assert_eq!(header(&by_name, "cache-control", &[]).as_deref(), Some("no-cache"));
    assert_eq!(header(&by_digest, "cache-control", &["--range", "10000-"]), None, "a refusal is not kept");
    assert_eq!(get(&server.url("/images/nobody"), &[]).0, 404);
    let (status, said) = get(&server.url("/images/lost"), &[]);
    assert!(status == 404 && String::from_utf8_lossy(&said).contains("not stored"), "{status}");
}

/// As much as lies in a file.
fn arrived(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |m| m.len())
}

#[test]
fn curl_goes_on_after_the_server_was_killed() {
    if is_played() {
        return;
    }
    // more than the kernel's buffers hold
    let bytes = content(48 << 20);
    let (folder, path) = one_image(&bytes);
    let got = folder.path().join("got");
    let output = got.display().to_string();
    let mut kills = 0;
    while kills < 3 {
        let mut server = Server::start(this_test!(), folder.path());
        let (url, before) = (server.url(&path), arrived(&got));
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--limit-rate", "20M", "--continue-at", "-", "--output", &output, &url]);
        let mut curl = curl.spawn().expect("curl is there (apt-get install -y --no-install-recommends curl)");
        wait_until("some bytes more", || arrived(&got) > before + (1 << 20));
        server.played.kill();
        let ended = curl.wait().expect("ends");
        assert!(!ended.success() && arrived(&got) < bytes.len() as u64, "killed in the middle: {ended}");
        kills += 1;
    }
    let server = Server::start(this_test!(), folder.path());
    let rest = curl(&["--continue-at", "-", "--output", &output, &server.url(&path)]);
    assert!(rest.status.success(), "{rest:?}");
    assert_eq!(sha256sum(&got), path.rsplit('/').next().expect("a digest"));
}
