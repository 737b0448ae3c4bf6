//! Leases in a file: one line for each that was given, synced before the client is told, so that a card has its address
//! after a restart, too. In a file of this process and not in the database: a lease belongs to the network that this
//! process serves, and machines must get their addresses while the database is away.
//!
//! A line is `ADDRESS MAC UNTIL`, the last in microseconds since 1970; the last line of an address counts. What a power
//! cut or a full disk has left of a line is passed over. The file is written anew when it has grown to several times what
//! it says.

use crate::dhcp::{Lease, LeaseKeeper};
use async_trait::async_trait;
use domain::Timestamp;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Lines that are not worth writing the file anew for.
const SLACK: usize = 1000;

pub struct LeaseFile(Arc<Mutex<Kept>>);

struct Kept {
    path: PathBuf,
    file: File,
    leases: BTreeMap<Ipv4Addr, Lease>,
    lines: usize,
    /// The last write did not end well: there may be half a line.
    torn: bool,
}

impl LeaseFile {
    /// Takes up what the file says; makes it where it is missing.
    pub fn open(path: &Path) -> io::Result<Self> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        // only with its end is a line whole: half a time is a time, too
        let whole = bytes.split_inclusive(|b| *b == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
        let leases: BTreeMap<_, _> = whole.filter_map(read).map(|lease| (lease.address, lease)).collect();
        // anew: what is appended must not follow half a line
        let file = write(path, &leases)?;
        let lines = leases.len();
        Ok(Self(Arc::new(Mutex::new(Kept { path: path.to_owned(), file, leases, lines, torn: false }))))
    }
}

fn line(lease: &Lease) -> String {
    format!("{} {} {}\n", lease.address, lease.mac, lease.until.micros())
}

fn read(line: &[u8]) -> Option<Lease> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let lease = Lease {
        address: words.next()?.parse().ok()?,
        mac: words.next()?.parse().ok()?,
        until: Timestamp::from_micros(words.next()?.parse().ok()?),
    };
    words.next().is_none().then_some(lease)
}

fn write(path: &Path, leases: &BTreeMap<Ipv4Addr, Lease>) -> io::Result<File> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    file.write_all(leases.values().map(line).collect::<String>().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    if let Some(folder) = std::path::absolute(path)?.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(file)
}

impl Kept {
    fn keep(&mut self, lease: Lease) -> io::Result<()> {
        if self.torn || self.lines > 4 * self.leases.len() + SLACK {
            self.file = write(&self.path, &self.leases)?;
            self.lines = self.leases.len();
        }
        self.torn = true;
        self.file.write_all(line(&lease).as_bytes())?;
        self.file.sync_data()?;
        self.torn = false;
        self.lines += 1;
        self.leases.insert(lease.address, lease);
        Ok(())
    }
}

#[async_trait]
impl LeaseKeeper for LeaseFile {
    async fn all(&self) -> Result<Vec<Lease>, String> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).leases.values().copied().collect())
    }

    async fn keep(&self, lease: Lease) -> Result<(), String> {
        let kept = self.0.clone();
        let keep = move || {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.keep(lease).map_err(|e| format!("writing {}: {e}", kept.path.display()))
        };
        tokio::task::spawn_blocking(keep).await.map_err(|e| e.to_string())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(last: u8, mac: u8, until: i64) -> Lease {
        Lease {
            address: Ipv4Addr::new(10, 77, 0, last),
            mac: crate::Mac::new([0x52, 0x54, 0, 0, 0, mac]),
            until: Timestamp::from_micros(until),
        }
    }

    #[tokio::test]
    async fn what_was_kept_is_there_after_a_restart_and_after_half_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("leases");
        let file = LeaseFile::open(&path).expect("opened");
        for one in [lease(1, 1, 10), lease(2, 2, 20), lease(1, 3, 30)] {
            file.keep(one).await.expect("kept");
        }
        assert_eq!(file.all().await.expect("all"), [lease(1, 3, 30), lease(2, 2, 20)]);
        drop(file);
        // a power cut in the middle of a line
        let mut torn = OpenOptions::new().append(true).open(&path).expect("opened");
        torn.write_all(b"10.77.0.1 52:54:00:00:00:03 3").expect("written");
        let file = LeaseFile::open(&path).expect("opened");
        file.keep(lease(3, 4, 40)).await.expect("kept");
        let again = LeaseFile::open(&path).expect("opened").all().await.expect("all");
        assert_eq!(again, [lease(1, 3, 30), lease(2, 2, 20), lease(3, 4, 40)]);
    }

    #[tokio::test]
    async fn what_is_no_text_hides_no_lease_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("leases");
        std::fs::write(&path, b"10.77.0.1 52:54:00:00:00:01 10\n\xff\xfe\0\n10.77.0.2 52:54:00:00:00:02 20\n")
            .expect("written");
        let file = LeaseFile::open(&path).expect("opened");
        assert_eq!(file.all().await.expect("all"), [lease(1, 1, 10), lease(2, 2, 20)]);
    }

    #[tokio::test]
    async fn after_a_write_that_failed_the_next_lease_has_a_line_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("leases");
        let file = LeaseFile::open(&path).expect("opened");
        file.keep(lease(1, 1, 10)).await.expect("kept");
        // as a full disk leaves it: half a line, and an error
        OpenOptions::new().append(true).open(&path).expect("opened").write_all(b"10.77.0.2 52:5").expect("written");
        file.0.lock().expect("locked").file = File::open(&path).expect("opened for reading only");
        file.keep(lease(2, 2, 20)).await.expect_err("cannot be written");
        file.keep(lease(3, 3, 30)).await.expect("kept");
        let again = LeaseFile::open(&path).expect("opened").all().await.expect("all");
        assert_eq!(again, [lease(1, 1, 10), lease(3, 3, 30)]);
    }

    #[tokio::test]
    async fn the_file_does_not_grow_with_renewals() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("leases");
        let file = LeaseFile::open(&path).expect("opened");
        for time in 0..3000 {
            file.0.lock().expect("locked").keep(lease(1, 1, time)).expect("kept");
        }
        let lines = std::fs::read_to_string(&path).expect("read").lines().count();
        assert!(lines < 2 * SLACK, "{lines}");
        assert_eq!(LeaseFile::open(&path).expect("opened").all().await.expect("all"), [lease(1, 1, 2999)]);
    }
}
