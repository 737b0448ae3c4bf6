//! Images as files in a folder, each called by the SHA-256 of its bytes: `FOLDER/sha256/HEX`. What is there is whole and
//! on disk: bytes are written to a temporary file beside it, synced, and renamed. A crash leaves temporary files and
//! nothing else; they are swept when the folder is opened. Whoever is adding holds a lock on its file, so that another
//! process may open the same folder meanwhile.
//!
//! Everything here waits for the disk: call it where waiting is allowed.

use super::{Digest, Kind};
use rustix::fs::{Advice, AtFlags, Mode, OFlags};
use sha2::Digest as _;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

pub(super) const FOLDER: &str = "sha256";
/// What temporary files are called begins so; no digest does.
const TEMPORARY: &str = ".adding-";
/// Read or written at a time.
const PIECE: usize = 1 << 20;
/// A new temporary file may be swept before it is locked; nobody is that unlucky so often.
const TRIES: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "the bytes have the digest {found}, not {expected} as expected; nothing was added: get the file again, or \
         correct the digest"
    )]
    Mismatch { expected: Digest, found: Digest },
    #[error("the image has more than {max} bytes, the most that is taken; nothing was added")]
    TooLarge { max: u64 },
    #[error("reading what is to be added: {0}; nothing was added")]
    Source(io::Error),
    #[error("{doing}: {reason}{}", advice(.reason))]
    Disk { doing: String, reason: io::Error },
}

/// What can be done now.
fn advice(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::StorageFull => "; remove images that nothing uses, or move the folder to a larger disk",
        io::ErrorKind::QuotaExceeded => "; remove images that nothing uses, or raise the quota of the server's user",
        io::ErrorKind::ReadOnlyFilesystem => "; mount it writable again (after an error of the disk: check it first)",
        io::ErrorKind::PermissionDenied => "; the server's user must be able to read and write this folder",
        _ => "",
    }
}

/// A folder of images.
#[derive(Debug)]
pub struct Store {
    /// For messages: files are opened relative to `folder`, whatever becomes of its name.
    path: PathBuf,
    pub(super) folder: OwnedFd,
    bytes_max: u64,
}

/// What a list has of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub digest: Digest,
    pub bytes: u64,
    pub kind: Kind,
}

/// What an image's bytes are found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    Sound {
        bytes: u64,
    },
    /// Adding the right bytes again mends it.
    Damaged {
        file: PathBuf,
        bytes: u64,
        found: Digest,
    },
    Missing,
}

impl Store {
    /// Opens the folder, which is made where it is missing, for images of so many bytes each at most.
    pub fn open(folder: &Path, bytes_max: u64) -> Result<Self, StoreError> {
        let path = folder.join(FOLDER);
        let opened = || {
            make(folder)?;
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
            let outer = rustix::fs::open(folder, flags, Mode::empty())?;
            match rustix::fs::mkdirat(&outer, FOLDER, Mode::from_raw_mode(0o755)) {
                Ok(()) => rustix::fs::fsync(&outer)?,
                Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
            io::Result::Ok(rustix::fs::openat(&outer, FOLDER, flags | OFlags::NOFOLLOW, Mode::empty())?)
        };
        let fd = opened().map_err(|reason| disk("opening the image store", &path, reason))?;
        let store = Self { path, folder: fd, bytes_max };
        store.sweep()?;
        Ok(store)
    }

    pub(super) fn failed(&self, doing: &str, name: &str, reason: impl Into<io::Error>) -> StoreError {
        disk(doing, &self.path.join(name), reason.into())
    }

    /// Removes what a crash has left.
    fn sweep(&self) -> Result<(), StoreError> {
        for name in self.entries()?.iter().filter(|name| name.starts_with(TEMPORARY)) {
            let opened = rustix::fs::openat(&self.folder, name, READING, Mode::empty());
            // gone, or something that we have not made: of no concern
            let Ok(file) = opened.map(File::from) else { continue };
            if file.try_lock().is_ok() {
                tracing::info!(file = %self.path.join(name).display(), "removing what was left of an image half added");
                let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
            }
        }
        Ok(())
    }

    pub(super) fn entries(&self) -> Result<Vec<String>, StoreError> {
        let failed = |e| self.failed("listing the image store", "", e);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.folder).map_err(failed)? {
            names.extend(entry.map_err(failed)?.file_name().to_str().map(str::to_owned));
        }
        Ok(names)
    }

    /// Begins to add an image that comes piece by piece. Dropped, it leaves nothing.
    pub fn adding(&self) -> Result<Adding<'_>, StoreError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for _ in 0..TRIES {
            let name = format!("{TEMPORARY}{:016x}", RandomState::new().hash_one(std::process::id()));
            let failed = |e| self.failed("beginning to add an image as", &name, e);
            // nobody is to write to what is called by its digest
            let opened = rustix::fs::openat(&self.folder, &name, flags, Mode::from_raw_mode(0o444));
            let file = match opened {
                Ok(fd) => File::from(fd),
                Err(rustix::io::Errno::EXIST) => continue,
                Err(e) => return Err(failed(e.into())),
            };
            file.lock().map_err(failed)?;
            if rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?.st_nlink > 0 {
                let digest = sha2::Sha256::new();
                return Ok(Adding { store: self, name, file, digest, bytes: 0, in_place: false });
            }
        }
        Err(self.failed("beginning to add an image", "", io::Error::other("somebody removes new files at once")))
    }

    /// Adds all that can be read. The same bytes again are the same file.
    pub fn add(&self, mut from: impl Read, expected: Option<Digest>) -> Result<(Digest, u64), StoreError> {
        let mut adding = self.adding()?;
        let mut piece = vec![0; PIECE];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return adding.finish(expected),
                Ok(read) => adding.write(&piece[..read])?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(StoreError::Source(e)),
            }
        }
    }

    pub fn add_file(&self, file: &Path, expected: Option<Digest>) -> Result<(Digest, u64), StoreError> {
        let named = |e: io::Error| StoreError::Source(io::Error::new(e.kind(), format!("{}: {e}", file.display())));
        self.add(File::open(file).map_err(named)?, expected)
    }

    /// `None`: it is not there.
    pub fn image(&self, digest: &Digest) -> Result<Option<Image>, StoreError> {
        let name = digest.to_string();
        let failed = |e: rustix::io::Errno| self.failed("opening the image", &name, e);
        let fd = match rustix::fs::openat(&self.folder, &name, READING, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP) => {
                let reason = io::Error::other("it is a symbolic link, and only what lies in the store is served");
                return Err(self.failed("opening the image", &name, reason));
            }
            Err(e) => return Err(failed(e)),
        };
        let status = rustix::fs::fstat(&fd).map_err(failed)?;
        if rustix::fs::FileType::from_raw_mode(status.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(self.failed("opening the image", &name, io::Error::other("it is no plain file")));
        }
        let bytes = u64::try_from(status.st_size).unwrap_or(0);
        Ok(Some(Image { file: File::from(fd), digest: *digest, bytes, path: self.path.join(name) }))
    }

    /// What a list would have of it.
    pub fn stored(&self, digest: &Digest) -> Result<Option<Stored>, StoreError> {
        let told = |image: Image| Stored {
            digest: *digest,
            bytes: image.bytes,
            kind: Kind::of(&image).unwrap_or(Kind::Unreadable),
        };
        Ok(self.image(digest)?.map(told))
    }

    /// Of one image.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// All of them, by digest. What else lies in the folder is left alone, and hides none of them.
    pub fn list(&self) -> Result<Vec<Stored>, StoreError> {
        let mut digests: Vec<Digest> = self.entries()?.iter().filter_map(|name| name.parse().ok()).collect();
        digests.sort_unstable();
        let mut all = Vec::new();
        for digest in digests {
            match self.stored(&digest) {
                // none: removed just now
                Ok(found) => all.extend(found),
                Err(e) => tracing::warn!(error = %e, "left out of the list of images"),
            }
        }
        Ok(all)
    }

    /// Answers whether it was there. Whether anything names it, the caller has seen to. Who reads it reads on.
    pub fn remove(&self, digest: &Digest) -> Result<bool, StoreError> {
        let name = digest.to_string();
        let gone = self.unlink("removing the image", &name)?;
        if gone {
            let failed = |e: rustix::io::Errno| self.failed("removing the image", &name, e);
            rustix::fs::fsync(&self.folder).map_err(failed)?;
        }
        self.unmark(digest)?;
        Ok(gone)
    }

    pub(super) fn unlink(&self, doing: &str, name: &str) -> Result<bool, StoreError> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(e) => Err(self.failed(doing, name, e)),
        }
    }

    /// Reads all of it again, from the disk as far as that can be had.
    pub fn verify(&self, digest: &Digest) -> Result<Verified, StoreError> {
        let Some(image) = self.image(digest)? else { return Ok(Verified::Missing) };
        // what is in memory says nothing about the disk; a file system that cannot do it changes no verdict
        let _ = rustix::fs::fadvise(&image.file, 0, None, Advice::DontNeed);
        let (mut sum, mut piece, mut bytes) = (sha2::Sha256::new(), vec![0; PIECE], 0);
        loop {
            let read = image.read_at(&mut piece, bytes)?;
            if read == 0 {
                break;
            }
            sum.update(&piece[..read]);
            bytes += read as u64;
        }
        let found = Digest::from_bytes(sum.finalize().into());
        if found == *digest {
            return Ok(Verified::Sound { bytes });
        }
        Ok(Verified::Damaged { file: image.path, bytes, found })
    }
}

/// Makes a folder, and those above it that are missing, with their names on disk: an image in a folder whose name is
/// lost is lost.
fn make(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|above| !above.exists()).collect();
    std::fs::create_dir_all(folder)?;
    for made in missing.into_iter().filter(|made| !made.as_os_str().is_empty()) {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(above)?.sync_all()?;
    }
    Ok(())
}

/// What is opened for reading is in the folder itself, and opening it waits for nobody.
const READING: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

fn disk(doing: &str, path: &Path, reason: io::Error) -> StoreError {
    StoreError::Disk { doing: format!("{doing} {}", path.display()), reason }
}

/// An image on its way into the store.
#[derive(Debug)]
pub struct Adding<'a> {
    store: &'a Store,
    name: String,
    /// Locked until it is closed.
    file: File,
    digest: sha2::Sha256,
    bytes: u64,
    in_place: bool,
}

impl Adding<'_> {
    pub fn write(&mut self, piece: &[u8]) -> Result<(), StoreError> {
        self.bytes += piece.len() as u64;
        if self.bytes > self.store.bytes_max {
            return Err(StoreError::TooLarge { max: self.store.bytes_max });
        }
        self.digest.update(piece);
        let failed = |e| self.store.failed("writing", &self.name, e);
        self.file.write_all(piece).map_err(failed)
    }

    /// Puts it in place, if it is what was expected. What is there already under that digest is replaced: it may be
    /// damaged, and these bytes are right.
    pub fn finish(mut self, expected: Option<Digest>) -> Result<(Digest, u64), StoreError> {
        let found = Digest::from_bytes(std::mem::take(&mut self.digest).finalize().into());
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(StoreError::Mismatch { expected, found });
        }
        let failed = |e: io::Error| self.store.failed("writing", &self.name, e);
        self.file.sync_all().map_err(failed)?;
        let folder = &self.store.folder;
        rustix::fs::renameat(folder, &self.name, folder, found.to_string()).map_err(|e| failed(e.into()))?;
        self.in_place = true;
        let failed = |e: rustix::io::Errno| self.store.failed("adding", &found.to_string(), e);
        rustix::fs::fsync(folder).map_err(failed)?;
        Ok((found, self.bytes))
    }
}

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        if !self.in_place {
            let _ = rustix::fs::unlinkat(&self.store.folder, &self.name, AtFlags::empty());
        }
    }
}

/// An image that is open: it can be read to its end, also when it is removed meanwhile.
#[derive(Debug)]
pub struct Image {
    file: File,
    digest: Digest,
    bytes: u64,
    path: PathBuf,
}

impl Image {
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// To be read from its beginning.
    pub fn into_file(self) -> File {
        self.file
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the buffer as far as there are bytes; answers how far.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, StoreError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(disk("reading the image", &self.path, e)),
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const MAX: u64 = 1 << 20;

    fn opened() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path(), MAX).expect("opened");
        (folder, store)
    }

    /// What the folder holds, as the file system has it.
    fn files(folder: &tempfile::TempDir) -> Vec<String> {
        let entries = std::fs::read_dir(folder.path().join(FOLDER)).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Of `abc`, from FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn an_image_is_kept_once_by_its_digest() {
        let (folder, store) = opened();
        let digest: Digest = ABC.parse().expect("a digest");
        assert_eq!(store.add(&b"abc"[..], Some(digest)).expect("added"), (digest, 3));
        assert_eq!(store.add(&b"abc"[..], None).expect("again"), (digest, 3));
        assert_eq!(files(&folder), [ABC]);
        assert_eq!(std::fs::read(folder.path().join(FOLDER).join(ABC)).expect("read"), b"abc");
        assert_eq!(store.list().expect("listed"), [Stored { digest, bytes: 3, kind: Kind::Raw }]);
        assert!(store.remove(&digest).expect("removed") && !store.remove(&digest).expect("removed"));
        assert!(store.image(&digest).expect("looked").is_none() && files(&folder).is_empty());
    }

    #[test]
    fn another_digest_than_expected_adds_nothing_and_says_both() {
        let (folder, store) = opened();
        let expected: Digest = "00".repeat(32).parse().expect("a digest");
        let said = store.add(&b"abc"[..], Some(expected)).expect_err("refused").to_string();
        assert!(said.contains(ABC) && said.contains(&expected.to_string()), "{said}");
        assert!(files(&folder).is_empty());
    }

    #[test]
    fn what_is_too_large_breaks_off_or_is_given_up_leaves_nothing() {
        struct Breaks(usize);
        impl Read for Breaks {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 > 3 { Err(io::Error::other("the cable")) } else { Ok(buffer.len().min(100)) }
            }
        }
        let (folder, store) = opened();
        let too_large = store.add(io::repeat(7), None).expect_err("refused");
        assert!(matches!(too_large, StoreError::TooLarge { max: MAX }), "{too_large}");
        assert!(store.add(io::repeat(7).take(MAX), None).is_ok());
        let broken = store.add(Breaks(0), None).expect_err("refused").to_string();
        assert!(broken.contains("the cable") && broken.contains("nothing was added"), "{broken}");
        let mut adding = store.adding().expect("begun");
        adding.write(b"half of it").expect("written");
        assert_eq!(files(&folder).len(), 2);
        drop(adding);
        assert_eq!(files(&folder).len(), 1);
        let missing = store.add_file(Path::new("/nowhere/image"), None).expect_err("refused").to_string();
        assert!(missing.contains("/nowhere/image"), "{missing}");
    }

    #[test]
    fn what_somebody_is_adding_is_not_swept() {
        let (folder, store) = opened();
        let mut adding = store.adding().expect("begun");
        adding.write(b"abc").expect("written");
        std::fs::write(folder.path().join(FOLDER).join(".adding-dead"), b"left by a crash").expect("written");
        Store::open(folder.path(), MAX).expect("opened again");
        assert_eq!(files(&folder), [adding.name.clone()]);
        adding.finish(None).expect("added");
        assert_eq!(files(&folder), [ABC]);
    }

    #[test]
    fn damage_is_found_and_mended_by_adding_again() {
        let (folder, store) = opened();
        let (digest, _) = store.add(&b"abc"[..], None).expect("added");
        assert_eq!(store.verify(&digest).expect("read"), Verified::Sound { bytes: 3 });
        let file = folder.path().join(FOLDER).join(ABC);
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(store.verify(&digest).expect("read"), Verified::Missing);
        std::fs::write(&file, b"abd").expect("written");
        match store.verify(&digest).expect("read") {
            Verified::Damaged { file: named, bytes: 3, found } if found != digest => assert_eq!(named, file),
            other => panic!("{other:?}"),
        }
        store.add(&b"abc"[..], None).expect("added");
        assert_eq!(store.verify(&digest).expect("read"), Verified::Sound { bytes: 3 });
    }

    #[test]
    fn only_plain_files_in_the_folder_itself_are_images() {
        let (folder, store) = opened();
        let outside = folder.path().join("outside");
        std::fs::write(&outside, b"abc").expect("written");
        let [link, directory, pipe] = ["aa", "bb", "cc"].map(|two| two.repeat(32));
        let at = |name: &str| folder.path().join(FOLDER).join(name);
        symlink(&outside, at(&link)).expect("linked");
        std::fs::create_dir(at(&directory)).expect("made");
        rustix::fs::mknodat(rustix::fs::CWD, at(&pipe), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o644), 0)
            .expect("made");
        for name in [link, directory, pipe] {
            let refused = store.image(&name.parse().expect("a digest")).expect_err("refused").to_string();
            assert!(refused.contains(&name), "{refused}");
        }
        let (digest, _) = store.add(&b"abc"[..], None).expect("added");
        assert_eq!(store.list().expect("listed"), [Stored { digest, bytes: 3, kind: Kind::Raw }]);
        // nor is the folder itself taken when it is a link
        let elsewhere = tempfile::tempdir().expect("a folder");
        symlink(folder.path().join(FOLDER), elsewhere.path().join(FOLDER)).expect("linked");
        assert!(Store::open(elsewhere.path(), MAX).is_err());
    }

    #[test]
    fn an_open_image_outlives_its_removal() {
        let (_folder, store) = opened();
        let (digest, _) = store.add(&b"abc"[..], None).expect("added");
        let image = store.image(&digest).expect("opened").expect("is there");
        store.remove(&digest).expect("removed");
        let mut bytes = [0; 10];
        assert_eq!(image.read_at(&mut bytes, 1).expect("read"), 2);
        assert_eq!(&bytes[..2], b"bc");
    }
}
