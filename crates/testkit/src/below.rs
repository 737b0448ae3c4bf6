//! What lies below the real binary, held by a test: the disk under one folder, and the clocks. A small C
//! library (`c/below.c`, loaded with LD_PRELOAD) does it; this is the hand on its switches, and the reader of
//! what it wrote down. Both sides know the same words and records.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a word stands in the control file.
#[derive(Clone, Copy)]
enum Word {
    WriteError,
    SyncError,
    ReadError,
    ChangeError,
    NoRoom,
    OnlyDatabase,
    ClockChanged,
    WallOffset,
    WallRate,
    MonotonicRate,
    Faults,
    Readings,
}

const WORDS: usize = 12;
const EIO: i64 = 5;
const ENOSPC: i64 = 28;
const EROFS: i64 = 30;

/// What is wrong with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No file can become longer: what is written anew finds no room, what is overwritten goes in.
    Full,
    /// Not even what is overwritten goes in, as where copies are made on write.
    FullForAll,
    /// Nothing can be written.
    WriteError,
    /// What was written may never reach the disk.
    SyncError,
    /// Nothing can be read, and nothing written.
    DeadDisk,
    /// The database's own file fails, and its log takes everything: what is committed cannot be taken in.
    DatabaseFile,
    /// As after `mount -o remount,ro`.
    ReadOnly,
}

/// How the clocks run, relative to the true ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Seconds that the wall clock is ahead.
    pub ahead: i64,
    /// Times as fast as the true one.
    pub wall_rate: i64,
    pub monotonic_rate: i64,
}

impl Clocks {
    pub const TRUE: Self = Self { ahead: 0, wall_rate: 1, monotonic_rate: 1 };
}

pub struct Below {
    control: File,
    control_path: PathBuf,
    library: PathBuf,
    folder: PathBuf,
}

impl Below {
    /// Holds what lies below whatever is started with [`Below::env`], as far as it is in `folder`. Its own
    /// files go to `place`.
    pub fn new(place: &Path, folder: &Path) -> Self {
        let place = place.canonicalize().expect("a folder for the library");
        let library = compile(&place);
        let control_path = place.join("below.control");
        let control = File::options().read(true).write(true).create(true).truncate(true).open(&control_path);
        let control = control.expect("a control file");
        control.set_len(8 * WORDS as u64).expect("its words");
        Self { control, control_path, library, folder: folder.to_owned() }
    }

    /// For the environment of the process. With `trace`, everything it does to the disk is written down there.
    pub fn env(&self, trace: Option<&Path>) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
        let mut env = vec![
            ("LD_PRELOAD".to_owned(), text(&self.library)),
            ("BELOW_CONTROL".to_owned(), text(&self.control_path)),
            ("BELOW_FOLDER".to_owned(), text(&self.folder)),
        ];
        env.extend(trace.map(|trace| ("BELOW_TRACE".to_owned(), text(trace))));
        env
    }

    fn set(&self, word: Word, value: i64) {
        self.control.write_all_at(&value.to_ne_bytes(), 8 * word as u64).expect("the control file is ours");
    }

    fn set_all(&self, words: &[Word], value: i64) {
        words.iter().for_each(|word| self.set(*word, value));
    }

    fn get(&self, word: Word) -> i64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, 8 * word as u64).expect("the control file is ours");
        i64::from_ne_bytes(bytes)
    }

    pub fn begin(&self, fault: Fault) {
        match fault {
            Fault::Full => self.set(Word::NoRoom, 1),
            Fault::FullForAll => self.set(Word::WriteError, ENOSPC),
            Fault::WriteError => self.set(Word::WriteError, EIO),
            Fault::SyncError => self.set(Word::SyncError, EIO),
            Fault::DeadDisk => self.set_all(&[Word::ReadError, Word::WriteError, Word::SyncError], EIO),
            Fault::DatabaseFile => {
                self.set(Word::OnlyDatabase, 1);
                self.set_all(&[Word::WriteError, Word::SyncError], EIO);
            }
            Fault::ReadOnly => self.set_all(&[Word::WriteError, Word::ChangeError], EROFS),
        }
    }

    /// The disk is well again.
    pub fn end(&self) {
        self.set_all(&[Word::WriteError, Word::SyncError, Word::ReadError, Word::ChangeError], 0);
        self.set_all(&[Word::NoRoom, Word::OnlyDatabase], 0);
    }

    pub fn set_clocks(&self, clocks: Clocks) {
        self.set(Word::WallRate, 1000 * clocks.wall_rate);
        self.set(Word::MonotonicRate, 1000 * clocks.monotonic_rate);
        self.set(Word::WallOffset, clocks.ahead * 1_000_000_000);
        self.set(Word::ClockChanged, self.get(Word::ClockChanged) + 1);
    }

    /// Errors given so far.
    pub fn faults(&self) -> i64 {
        self.get(Word::Faults)
    }

    /// How often a clock was read so far.
    pub fn readings(&self) -> i64 {
        self.get(Word::Readings)
    }
}

fn compile(place: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/below.c");
    let library = place.join("below.so");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&library).arg(&source).arg("-lpthread");
    match command.output() {
        Ok(done) if done.status.success() => library,
        Ok(done) => panic!("cc {}:\n{}", source.display(), String::from_utf8_lossy(&done.stderr)),
        Err(e) => panic!("running cc: {e}; a C compiler is needed: apt-get install gcc libc6-dev"),
    }
}

/// One thing that was done to the disk, and where the trace stood afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub end: u64,
    pub change: Change,
}

/// Files and folders go by their inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Write { file: u64, offset: u64, bytes: Vec<u8> },
    Cut { file: u64, length: u64 },
    Sync { file: u64 },
    Made { file: u64, path: PathBuf },
    Folder { file: u64, path: PathBuf },
    Renamed { from: PathBuf, to: PathBuf },
    Removed { path: PathBuf },
}

/// How far a trace goes: everything done before this moment stands before it.
pub fn trace_length(trace: &Path) -> u64 {
    std::fs::metadata(trace).expect("a trace").len()
}

pub fn read_trace(trace: &Path) -> Vec<Record> {
    let bytes = std::fs::read(trace).expect("a trace");
    let mut records = Vec::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(21);
        let number = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let length = u32::from_ne_bytes(head[17..21].try_into().expect("four bytes")) as usize;
        let (body, tail) = tail.split_at(length);
        let path = |bytes: &[u8]| PathBuf::from(std::str::from_utf8(bytes).expect("a plain path"));
        let (file, offset) = (number(1), number(9));
        let change = match head[0] {
            b'w' => Change::Write { file, offset, bytes: body.to_vec() },
            b'c' => Change::Cut { file, length: offset },
            b's' => Change::Sync { file },
            b'm' => Change::Made { file, path: path(body) },
            b'f' => Change::Folder { file, path: path(body) },
            b'u' => Change::Removed { path: path(body) },
            b'r' => {
                let mut both = body.split(|b| *b == 0).map(path);
                let mut next = || both.next().expect("two names");
                Change::Renamed { from: next(), to: next() }
            }
            other => panic!("a record of kind {other}"),
        };
        rest = tail;
        records.push(Record { end: (bytes.len() - rest.len()) as u64, change });
    }
    records
}
