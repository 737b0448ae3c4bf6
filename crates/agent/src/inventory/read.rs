//! Reading what the kernel and others have left in files: so much of each and no more, never waiting, and whatever bytes
//! there are end as plain text. A file that is not there, loops, or is no file says nothing.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// More than any table of the kernel's that is read here.
const MOST: u64 = 256 << 10;
/// More than any folder that is read here has.
const MOST_ENTRIES: usize = 8192;
/// Of one value, in characters.
const LONGEST: usize = 256;

/// Its first bytes.
pub fn bytes(path: &Path, most: u64) -> Option<Vec<u8>> {
    // a pipe that somebody has put there must not hold us
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).ok()?;
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut read = Vec::new();
    file.take(most).read_to_end(&mut read).ok()?;
    Some(read)
}

/// A file of lines.
pub fn lines(path: &Path) -> String {
    String::from_utf8_lossy(&bytes(path, MOST).unwrap_or_default()).into_owned()
}

/// A file of one value.
pub fn value(path: &Path) -> String {
    clean(&String::from_utf8_lossy(&bytes(path, 4096).unwrap_or_default()))
}

pub fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    value(path).parse().ok()
}

/// The last name of where a link leads.
pub fn link(path: &Path) -> String {
    let target = std::fs::read_link(path).ok();
    target.and_then(|target| Some(clean(&target.file_name()?.to_string_lossy()))).unwrap_or_default()
}

/// The names in a folder, in order.
pub fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.take(MOST_ENTRIES).flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// One line of what can be printed.
pub fn clean(text: &str) -> String {
    let line: String = text.trim().chars().take_while(|c| *c != '\n').filter(|c| !c.is_control()).collect();
    line.trim().chars().take(LONGEST).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn whatever_is_there_ends_as_a_short_line_or_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("plain"), "  R750 \n").unwrap();
        std::fs::write(at("bytes"), b"a\xff\xfe\x00\x07b\nsecond").unwrap();
        std::fs::write(at("number"), "42\n").unwrap();
        File::create(at("huge")).unwrap().set_len(1 << 40).unwrap();
        std::fs::write(at("long"), "x".repeat(100_000)).unwrap();
        symlink("loop", at("loop")).unwrap();
        symlink("/nowhere/driver-x", at("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(value(&at("plain")), "R750");
        assert_eq!(value(&at("bytes")), "a\u{fffd}\u{fffd}b");
        assert_eq!(number(&at("number")), Some(42));
        assert_eq!(number::<u8>(&at("plain")), None);
        assert_eq!(value(&at("huge")), "", "zeros are nothing to print");
        assert_eq!(lines(&at("huge")).len() as u64, MOST);
        assert_eq!(value(&at("long")).len(), LONGEST);
        for nothing in ["loop", "pipe", "missing", "plain/below", "."] {
            assert_eq!(value(&at(nothing)), "", "{nothing}");
        }
        assert_eq!((link(&at("link")), link(&at("plain"))), ("driver-x".to_owned(), String::new()));
        assert_eq!(names(&at("plain")), Vec::<String>::new());
        assert_eq!(names(folder.path()).first().map(String::as_str), Some("bytes"));
    }
}
