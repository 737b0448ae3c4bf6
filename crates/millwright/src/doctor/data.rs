//! The data folder, what lies in it, the address, and the clock.

use super::configuration::Found;
use super::report::Report;
use crate::cli::{now, span};
use crate::config::Config;
use rustix::fs::{Access, access, statvfs};
use std::fs::{File, TryLockError};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const AREA: &str = "data folder";
const SPACE_LOW: u64 = 1 << 30;
const SPACE_OUT: u64 = 100 << 20;
/// Before this the software did not exist; after that it surely does not.
const YEARS: std::ops::Range<i16> = 2025..2100;

/// Whether a server runs on the data folder.
pub fn check(report: &mut Report, config: &Config) -> bool {
    let path = &config.server.data;
    let name = path.display();
    let known = match std::fs::metadata(path) {
        Ok(known) => known,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            first_start(report, path);
            return false;
        }
        Err(e) => {
            report.failed(AREA, format!("{name}: {e}"), "make it readable for the server's user");
            return false;
        }
    };
    if !known.is_dir() {
        report.failed(AREA, format!("{name} is not a folder"), "name another with --data or server.data");
        return false;
    }
    let mode = known.permissions().mode() & 0o777;
    if access(path, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
        report.failed(AREA, format!("{name}: cannot be written"), "run as the server's user, or give it to that user");
    } else if mode & 0o077 != 0 {
        report.doubtful(AREA, format!("{name}: others can look in (mode {mode:03o})"), format!("chmod 700 {name}"));
    } else {
        report.fine(AREA, format!("{name}: mode {mode:03o}"));
    }
    space(report, path);
    token_file(report, &path.join("admin.token"));
    let held = is_held(&path.join("lock"));
    match held {
        true => report.fine("server", "one is running on this folder"),
        false => report.skipped("server", "none is running on this folder"),
    }
    held
}

/// The folder is made by the first start, if that can be done.
fn first_start(report: &mut Report, path: &Path) {
    let name = path.display();
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let above = whole.ancestors().skip(1).find(|folder| folder.exists());
    match above {
        Some(folder) if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok() => {
            report.skipped(AREA, format!("{name} is not there yet: the first start makes it"));
            space(report, folder);
        }
        Some(folder) => {
            let what = format!("{name} is not there, and cannot be made in {}", folder.display());
            report.failed(AREA, what, "make it for the server's user, or name another with --data");
        }
        None => report.failed(AREA, format!("{name}: there is no such place"), "name another with --data"),
    }
}

fn space(report: &mut Report, path: &Path) {
    match statvfs(path) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let what = format!("{} free in {}", bytes(free), path.display());
            match free {
                0..SPACE_OUT => report.failed("disk", what, "make room: without it nothing is accepted"),
                SPACE_OUT..SPACE_LOW => report.doubtful("disk", what, "make room before it is full"),
                _ => report.fine("disk", what),
            }
        }
        Err(e) => report.doubtful("disk", format!("{}: {e}", path.display()), "look with df"),
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..0x10_0000 => format!("{} KiB", count >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", count >> 20),
        _ => format!("{}.{} GiB", count >> 30, (count >> 20) % 1024 * 10 / 1024),
    }
}

fn token_file(report: &mut Report, path: &Path) {
    const AREA: &str = "token file";
    let name = path.display();
    let Ok(known) = std::fs::metadata(path) else {
        return report.skipped(AREA, format!("{name} is not there: before the first start, or removed on purpose"));
    };
    if let Ok(secret) = std::fs::read_to_string(path) {
        report.secret(&secret);
    }
    match known.permissions().mode() & 0o777 {
        mode if mode & 0o077 != 0 => {
            let next = format!("chmod 600 {name}; if others were here, make a new token and revoke this one");
            report.failed(AREA, format!("{name}: others can read it (mode {mode:03o})"), next);
        }
        mode => report.fine(AREA, format!("{name}: mode {mode:03o}")),
    }
}

/// Whether somebody holds the lock. Looked at with a shared one for a moment, and only if the file is there.
fn is_held(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Whether the address can be listened on, or is by our own server.
pub fn check_address(report: &mut Report, found: &Found, held: bool) {
    const AREA: &str = "address";
    let listen = &found.config.server.listen;
    match TcpListener::bind(listen) {
        Ok(listener) => {
            let beyond = listener.local_addr().is_ok_and(|address| !address.ip().is_loopback());
            if beyond && found.tls.cert.is_none() {
                let what = "can be reached from other machines, and tokens would cross the network unencrypted: serve refuses it unless --allow-plaintext is given";
                let next = "set tls.cert and tls.key, or listen on 127.0.0.1";
                report.failed(AREA, format!("{listen} is free; it {what}"), next);
            } else {
                report.fine(AREA, format!("{listen} is free"));
            }
        }
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && held => {
            report.fine(AREA, format!("{listen} is in use, as it should be: the server runs"));
        }
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
            let next = "end that program, or choose another with server.listen";
            report.failed(AREA, format!("{listen} is taken by another program"), next);
        }
        Err(e) => report.failed(AREA, format!("{listen}: {e}"), "choose another with server.listen"),
    }
}

pub fn check_clock(report: &mut Report) {
    const AREA: &str = "clock";
    let now = now();
    let year = now.to_zoned(jiff::tz::TimeZone::UTC).year();
    if YEARS.contains(&year) {
        report.fine(AREA, format!("{now:.0}"));
    } else {
        report.failed(AREA, format!("{now:.0} cannot be right"), "set it; certificates and tokens are judged by it");
    }
}

/// A database written in the future tells of a clock that was set back.
pub fn check_age(report: &mut Report, path: &Path) {
    const SLACK: jiff::SignedDuration = jiff::SignedDuration::from_mins(5);
    let written = std::fs::metadata(path).and_then(|known| known.modified()).ok();
    let Some(written) = written.and_then(|at| jiff::Timestamp::try_from(at).ok()) else { return };
    let ahead = written.duration_since(now());
    if ahead > SLACK {
        let what = format!("{} was written {} in the future", path.display(), span(ahead));
        report.doubtful("clock", what, "compare this machine's clock with others");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_for_people() {
        assert_eq!(
            (bytes(5 << 10), bytes(300 << 20), bytes(3 << 29)),
            ("5 KiB".into(), "300 MiB".into(), "1.5 GiB".into())
        );
    }

    #[test]
    fn a_lock_is_seen_and_not_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        assert!(!is_held(&path) && !path.exists(), "nothing is made");
        let file = File::create(&path).expect("made");
        assert!(!is_held(&path));
        file.lock().expect("locked");
        assert!(is_held(&path));
    }
}
