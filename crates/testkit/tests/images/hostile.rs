//! Nothing outside the store is served, whatever the path; and no request holds up the others.

use crate::child::{PATIENCE, Server, content, is_played, one_image, this_test};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::symlink;
use std::process::Command;

/// In every file that must not be served.
const SECRET: &[u8] = b"not-for-anybody";

/// What comes back for a request.
fn ask(server: &Server, line: &str, headers: &str) -> Vec<u8> {
    let request = format!("{line}\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    exchange(server, request.as_bytes(), false)
}

/// What comes back for these bytes.
fn exchange(server: &Server, request: &[u8], and_no_more: bool) -> Vec<u8> {
    let mut socket = TcpStream::connect(&server.address).expect("connects");
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    // it may have had enough and closed
    drop(socket.write_all(request));
    if and_no_more {
        drop(socket.shutdown(Shutdown::Write));
    }
    let mut answer = Vec::new();
    drop(socket.read_to_end(&mut answer));
    answer
}

fn status(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(&answer[..answer.len().min(100)]);
    text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0)
}

#[test]
fn nothing_outside_the_store_is_served() {
    if is_played() {
        return;
    }
    let bytes = content(5000);
    let (folder, good) = one_image(&bytes);
    let inside = folder.path().join("sha256");
    let [link, up, directory, pipe] = ["aa", "bb", "cc", "dd"].map(|two| two.repeat(32));
    std::fs::write(folder.path().join("secret"), SECRET).expect("written");
    symlink("../secret", inside.join(&link)).expect("linked");
    symlink("..", inside.join(&up)).expect("linked");
    std::fs::create_dir(inside.join(&directory)).expect("made");
    std::fs::write(inside.join(&directory).join("secret"), SECRET).expect("written");
    assert!(Command::new("mkfifo").arg(inside.join(&pipe)).status().expect("mkfifo is there").success());
    let half_added = std::fs::File::create(inside.join(".adding-0123456789abcdef")).expect("made");
    half_added.lock().expect("locked");
    std::fs::write(inside.join(".adding-0123456789abcdef"), SECRET).expect("written");
    std::fs::write(inside.join("notes.txt"), SECRET).expect("written");
    let server = Server::start(this_test!(), folder.path());
    let mut paths: Vec<String> = Vec::new();
    for target in [&link, &up, &directory, &pipe] {
        paths.extend([format!("/images/sha256/{target}"), format!("/images/sha256/{target}/secret")]);
    }
    for step in ["..", "%2e%2e", ".%2e", "%2E.", "..%00", "....", "..;", "%c0%ae%c0%ae", "%252e%252e", ".", ""] {
        for slash in ["/", "%2f", "%2F", "\\", "%5c", "%252f", "//", "%c0%af"] {
            for ending in ["secret", "etc/passwd", "sha256/notes.txt"] {
                paths.push(format!("/images/{step}{slash}{ending}"));
                paths.push(format!("/images/sha256/{step}{slash}{ending}"));
                paths.push(format!("/images/sha256{slash}{step}{slash}{step}{slash}{ending}"));
                paths.push(format!("/{step}{slash}images{slash}{step}{slash}{ending}"));
            }
        }
    }
    for odd in [
        "/images/sha256/notes.txt",
        "/images/sha256/.adding-0123456789abcdef",
        "/images/secret",
        "/images/notes.txt",
        "/secret",
        "/",
        "*",
        "http://elsewhere/images/../secret",
        "/images/sha256",
        "/images/sha256/",
    ] {
        paths.push(odd.to_owned());
    }
    paths.push(format!("{good}/"));
    paths.push(format!("{good}/../notes.txt"));
    paths.push(format!("{good}%00"));
    paths.push(good.to_uppercase());
    for path in &paths {
        let answer = ask(&server, &format!("GET {path} HTTP/1.1"), "");
        let status = status(&answer);
        assert!([400, 404, 500].contains(&status), "{path}: {status}");
        assert!(!answer.windows(SECRET.len()).any(|w| w == SECRET), "{path} leaks");
        assert!(!answer.windows(5).any(|w| w == b"root:"), "{path} leaks");
    }
    println!("{} paths", paths.len());
    // no more than a plain request is served to all that; and the port itself has bounds
    let long = ask(&server, &format!("GET /images/{} HTTP/1.1", "n".repeat(100_000)), "");
    assert!([400, 414, 431].contains(&status(&long)) || long.is_empty(), "{}", status(&long));
    let many = ask(&server, &format!("GET {good} HTTP/1.1"), &"x: y\r\n".repeat(10_000));
    assert!([400, 431].contains(&status(&many)) || many.is_empty(), "{}", status(&many));
    for junk in [&b"\0\0\0\0"[..], b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""] {
        let answer = exchange(&server, junk, true);
        assert!(answer.is_empty() || status(&answer) == 400, "{junk:?}: {}", String::from_utf8_lossy(&answer));
    }
    let fine = ask(&server, &format!("GET {good} HTTP/1.0"), "");
    assert!(status(&fine) == 200 && fine.ends_with(&bytes));
}
