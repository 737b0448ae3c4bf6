//! The server's side of the wire between server and installer, as small as it can be: gives out one order, one image and a
//! seed, takes reports, and misbehaves as it is told.

use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use testkit::qemu::{HOST, Machine};

pub const TOKEN: &str = "mwb_token-of-the-stand-in";

/// What it gives, and how it behaves. All of it may change while it runs.
#[derive(Default)]
pub struct Behaviour {
    pub order: Vec<(String, String)>,
    pub image: Vec<u8>,
    pub seed: Vec<(&'static str, String)>,
    /// For each connection that asks for the image, one after the other: it ends after so many bytes.
    pub cuts: Vec<usize>,
    /// So many requests for the image are answered with this status.
    pub image_errors: (usize, u16),
    /// The image's bytes stop here, and the connection stays open, until this is taken away.
    pub hold_at: Option<usize>,
    /// Reports are answered with this status instead.
    pub report_status: Option<u16>,
    /// Reports of a status that are taken are answered with this.
    pub answers: Vec<(&'static str, &'static str)>,
    /// What came: reports in order, and of requests the first line, with the offset asked for where there was one.
    pub reports: Vec<Value>,
    pub requests: Vec<String>,
}

#[derive(Clone)]
pub struct StandIn {
    port: u16,
    behaviour: Arc<Mutex<Behaviour>>,
}

impl StandIn {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let standin = Self { port, behaviour: Arc::default() };
        let served = standin.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let served = served.clone();
                std::thread::spawn(move || served.serve(connection));
            }
        });
        standin
    }

    /// As the machine reaches it.
    pub fn url(&self) -> String {
        format!("http://{HOST}:{}", self.port)
    }

    pub fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reports of a status.
    pub fn reported(&self, status: &str) -> Vec<Value> {
        self.behaviour().reports.iter().filter(|r| r["installation_status"] == status).cloned().collect()
    }

    /// Until the machine has caused something here.
    pub fn wait(&self, machine: &mut Machine, what: &str, mut look: impl FnMut(&Behaviour) -> bool) {
        machine.wait(what, |_| look(&self.behaviour()).then_some(()));
    }

    fn serve(&self, mut connection: TcpStream) {
        let Some((head, body)) = request(&mut connection) else { return };
        let first = head.lines().next().unwrap_or_default().to_owned();
        let header = |name: &str| {
            let of = |line: &&str| line.split_once(':').is_some_and(|(n, _)| n.eq_ignore_ascii_case(name));
            head.lines().find(of).and_then(|l| l.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let range = header("range");
        self.behaviour().requests.push(format!("{first} {}", range.clone().unwrap_or_default()));
        let known = header("authorization").as_deref() == Some(&format!("Bearer {TOKEN}"));
        let path = first.split(' ').nth(1).unwrap_or_default();
        if path == "/image" {
            return self.give_image(connection, range);
        }
        let (status, body) = match path {
            "/api/v1/report" => self.take_report(&body, known),
            // of the installed system
            "/firstboot" => {
                self.behaviour().reports.push(serde_json::from_slice(&body).expect("JSON"));
                (200, "{}".to_owned())
            }
            _ if !known => (401, String::new()),
            "/api/v1/boot/order" => (200, self.order()),
            _ => {
                let file = path.strip_prefix("/api/v1/boot/seed/").unwrap_or("none");
                let behaviour = self.behaviour();
                let found = behaviour.seed.iter().find(|(name, _)| *name == file);
                found.map_or((404, String::new()), |(_, text)| (200, text.clone()))
            }
        };
        drop(answer(&mut connection, status, "", body.as_bytes()));
    }

    fn order(&self) -> String {
        let quoted = |value: &str| value.replace('\'', r"'\''");
        self.behaviour().order.iter().map(|(key, value)| format!("{key}='{}'\n", quoted(value))).collect()
    }

    fn take_report(&self, body: &[u8], known: bool) -> (u16, String) {
        let mut behaviour = self.behaviour();
        if let Some(status) = behaviour.report_status {
            return (status, String::new());
        }
        let report: Value = match serde_json::from_slice(body) {
            Ok(report) => report,
            Err(e) => panic!("a report is not JSON: {e}: {}", String::from_utf8_lossy(body)),
        };
        // only what a machine says of itself needs no token
        if !known && report["installation_status"] != Value::Null {
            return (401, String::new());
        }
        let told = behaviour.answers.iter().find(|(status, _)| report["installation_status"] == *status);
        let usual = r#"{"applied": true, "state": "installing", "reason": ""}"#;
        let answer = told.map_or(usual, |(_, answer)| *answer).to_owned();
        behaviour.reports.push(report);
        (200, answer)
    }

    fn give_image(&self, mut connection: TcpStream, range: Option<String>) {
        let from = range.and_then(|r| r.trim_start_matches("bytes=").split('-').next().and_then(|n| n.parse().ok()));
        let (bytes, cut) = {
            let mut behaviour = self.behaviour();
            if behaviour.image_errors.0 > 0 {
                behaviour.image_errors.0 -= 1;
                let status = behaviour.image_errors.1;
                drop(behaviour);
                return drop(answer(&mut connection, status, "", b""));
            }
            let cut = if behaviour.cuts.is_empty() { usize::MAX } else { behaviour.cuts.remove(0) };
            (behaviour.image.clone(), cut)
        };
        let offset = from.unwrap_or(0);
        let head = format!("content-range: bytes {offset}-{}/{}\r\n", bytes.len().saturating_sub(1), bytes.len());
        let status = if from.is_some() { 206 } else { 200 };
        let mut sent = offset;
        if write_head(&mut connection, status, &head, bytes.len() - offset).is_err() {
            return;
        }
        while sent < bytes.len() {
            let held = self.behaviour().hold_at;
            if held.is_some_and(|at| sent >= at) {
                // quiet, until the test goes on or the machine has gone
                std::thread::park_timeout(Duration::from_millis(50));
                continue;
            }
            let end = bytes.len().min(sent + 32768).min(offset.saturating_add(cut)).min(held.unwrap_or(usize::MAX));
            if end == sent || connection.write_all(&bytes[sent..end]).is_err() {
                return;
            }
            sent = end;
        }
    }
}

fn request(connection: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut buffer = [0; 16384];
    loop {
        let head = all.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = head {
            let head = String::from_utf8_lossy(&all[..end]).into_owned();
            let length =
                |l: &str| l.to_ascii_lowercase().strip_prefix("content-length:").and_then(|n| n.trim().parse().ok());
            let length: usize = head.lines().find_map(length).unwrap_or(0);
            if all.len() >= end + 4 + length {
                return Some((head, all[end + 4..].to_vec()));
            }
        }
        match connection.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(read) => all.extend_from_slice(&buffer[..read]),
        }
    }
}

fn write_head(connection: &mut TcpStream, status: u16, headers: &str, length: usize) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} As-Told\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n");
    connection.write_all(head.as_bytes())
}

fn answer(connection: &mut TcpStream, status: u16, headers: &str, body: &[u8]) -> std::io::Result<()> {
    write_head(connection, status, headers, body.len())?;
    connection.write_all(body)
}
