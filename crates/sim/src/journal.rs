//! The journal: effects as JSON lines, only ever appended. One `write` per effect, before the call that
//! caused it answers, so that a killed process loses nothing it has answered for.
//!
//! Processes may share a file: each takes the file's lock for a moment and first reads what the others
//! appended. Opening is the same thing, from the beginning.

use crate::effect::{Effect, Record};
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The longest line: well above the largest step payload with every character escaped.
const LINE_MAX: usize = 4 * 1024 * 1024;
/// What a journal without a file may hold.
const MEMORY_MAX: usize = 256 * 1024 * 1024;

pub(crate) struct Journal {
    place: Place,
    /// How far it was read or written, in bytes and in lines.
    offset: u64,
    lines: u64,
}

enum Place {
    File { file: File, path: PathBuf },
    Memory(Vec<u8>),
}

impl Journal {
    /// Nothing is read yet: that is [`Journal::catch_up`]'s.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        Ok(Self { place: Place::File { file, path: path.to_owned() }, offset: 0, lines: 0 })
    }

    pub(crate) fn in_memory() -> Self {
        Self { place: Place::Memory(Vec::new()), offset: 0, lines: 0 }
    }

    pub(crate) fn lock(&self) -> io::Result<()> {
        match &self.place {
            Place::File { file, .. } => file.lock(),
            Place::Memory(_) => Ok(()),
        }
    }

    pub(crate) fn unlock(&self) -> io::Result<()> {
        match &self.place {
            Place::File { file, .. } => file.unlock(),
            Place::Memory(_) => Ok(()),
        }
    }

    /// Hands over every record appended since the last look, and cuts off a torn last line: under the
    /// lock nobody is writing it, and nobody was answered for it. Call with the lock held.
    pub(crate) fn catch_up(&mut self, mut apply: impl FnMut(Record) -> Result<(), String>) -> io::Result<()> {
        let Place::File { file, path } = &mut self.place else { return Ok(()) };
        let length = file.metadata()?.len();
        if length == self.offset {
            return Ok(());
        }
        if length < self.offset {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("{}: was cut while in use", path.display())));
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::new(&*file);
        let mut line = Vec::new();
        loop {
            match next_line(&mut reader, &mut line)? {
                Line::Whole => {
                    let expected = self.lines + 1;
                    let malformed = |problem: String| malformed(&path.display().to_string(), expected, &problem);
                    let record: Record = parse(&line).map_err(malformed)?;
                    if record.number != expected {
                        return Err(malformed(format!("it is numbered {}", record.number)));
                    }
                    apply(record).map_err(malformed)?;
                    self.offset += line.len() as u64;
                    self.lines = expected;
                }
                Line::Torn => return file.set_len(self.offset),
                Line::TooLong => {
                    return Err(malformed(&path.display().to_string(), self.lines + 1, "it is too long"));
                }
                Line::End => return Ok(()),
            }
        }
    }

    /// The number the next record must bear.
    pub(crate) fn next_number(&self) -> u64 {
        self.lines + 1
    }

    /// Call with the lock held, and caught up.
    pub(crate) fn append(&mut self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if line.len() > LINE_MAX {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the effect is too large for the journal"));
        }
        match &mut self.place {
            Place::File { file, path } => {
                let written = file.write(&line)?;
                if written != line.len() {
                    file.set_len(self.offset)?;
                    let problem = format!("{}: only part of a line could be written", path.display());
                    return Err(io::Error::new(ErrorKind::WriteZero, problem));
                }
            }
            Place::Memory(lines) => {
                if lines.len() + line.len() > MEMORY_MAX {
                    return Err(io::Error::new(ErrorKind::StorageFull, "the journal in memory is full"));
                }
                lines.extend_from_slice(&line);
            }
        }
        self.offset += line.len() as u64;
        self.lines += 1;
        Ok(())
    }

    /// Something to read the effects from once no lock is held.
    pub(crate) fn source(&self) -> Source {
        match &self.place {
            Place::File { path, .. } => Source::File(path.clone()),
            Place::Memory(lines) => Source::Memory(lines.clone()),
        }
    }
}

pub(crate) enum Source {
    File(PathBuf),
    Memory(Vec<u8>),
}

impl Source {
    pub(crate) fn effects(&self) -> io::Result<Vec<Effect>> {
        match self {
            Source::File(path) => read_effects(path),
            Source::Memory(lines) => read_all("memory", lines.as_slice()),
        }
    }
}

/// Every effect in a journal, for auditors. Changes nothing; a torn last line is left out.
pub fn read_effects(path: &Path) -> io::Result<Vec<Effect>> {
    read_all(&path.display().to_string(), BufReader::new(File::open(path)?))
}

fn read_all(name: &str, mut reader: impl BufRead) -> io::Result<Vec<Effect>> {
    let mut effects = Vec::new();
    let mut line = Vec::new();
    loop {
        let number = effects.len() as u64 + 1;
        match next_line(&mut reader, &mut line)? {
            Line::Whole => effects.push(parse(&line).map_err(|problem| malformed(name, number, &problem))?),
            Line::TooLong => return Err(malformed(name, number, "it is too long")),
            Line::Torn | Line::End => return Ok(effects),
        }
    }
}

enum Line {
    Whole,
    /// The last one, without its newline.
    Torn,
    TooLong,
    End,
}

fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    reader.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', line)?;
    Ok(match line.last() {
        None => Line::End,
        Some(b'\n') => Line::Whole,
        Some(_) if line.len() > LINE_MAX => Line::TooLong,
        Some(_) => Line::Torn,
    })
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|e| e.to_string())
}

fn malformed(name: &str, line: u64, problem: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{name}: line {line} is malformed: {problem}"))
}
