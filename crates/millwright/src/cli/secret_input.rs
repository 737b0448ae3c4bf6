//! Where a command gets a secret from: a file, stdin, or the keyboard without showing what is typed.

use super::exit::CliError;
use domain::Secret;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{BufRead, IsTerminal as _, Read, Write as _};
use std::path::Path;
use zeroize::Zeroizing;

/// More than any secret has.
const BYTES_MAX: u64 = 1024 * 1024;

/// The text of a file, without the newline at its end.
pub fn file(path: &Path) -> Result<Secret, CliError> {
    let failed = |e: &dyn std::fmt::Display| CliError::usage(format!("reading {}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(|e| failed(&e))?;
    read(file).map_err(|e| failed(&e))
}

/// All of stdin, without the newline at its end.
pub fn stdin() -> Result<Secret, CliError> {
    read(std::io::stdin().lock()).map_err(|e| CliError::usage(format!("reading stdin: {e}")))
}

fn read(from: impl Read) -> Result<Secret, String> {
    let mut text = Zeroizing::new(String::new());
    // what is not UTF-8 is told without being quoted
    let bytes = from.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidData => "it is no text (UTF-8); is it the right file?".to_owned(),
        _ => e.to_string(),
    })?;
    if bytes as u64 > BYTES_MAX {
        return Err(format!("it holds more than {BYTES_MAX} bytes"));
    }
    let text = text.strip_suffix('\n').map_or(text.as_str(), |rest| rest.strip_suffix('\r').unwrap_or(rest));
    if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(Secret::new(text)) }
}

/// Typed in twice by a person. `otherwise` says how a script gives it.
pub fn asked(prompt: &str, otherwise: &str) -> Result<Secret, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::usage("nobody is there to be asked for the password").hint(format!("use {otherwise}")));
    }
    let first = typed(prompt)?;
    if first.is_empty() {
        return Err(CliError::usage("the password is empty"));
    }
    if typed("once more: ")? != first {
        return Err(CliError::usage("the two differ; nothing was sent"));
    }
    Ok(first)
}

/// Puts the terminal back as it was.
struct Silent(Termios);

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.0);
    }
}

fn typed(prompt: &str) -> Result<Secret, CliError> {
    let failed = |e: &dyn std::fmt::Display| CliError::failed(format!("asking for a password: {e}"));
    let before = tcgetattr(std::io::stdin()).map_err(|e| failed(&e))?;
    let mut silent = before.clone();
    // also without signals: one that ends us here would leave the terminal silent
    silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
    let restore = Silent(before);
    tcsetattr(std::io::stdin(), OptionalActions::Flush, &silent).map_err(|e| failed(&e))?;
    let mut err = std::io::stderr().lock();
    drop(write!(err, "{prompt}").and_then(|()| err.flush()));
    let line = line(std::io::stdin().lock());
    drop(restore);
    drop(writeln!(err));
    match line.map_err(|e| failed(&e))? {
        Some(text) => Ok(text),
        None => Err(CliError::usage("canceled; nothing was sent")),
    }
}

/// What a person types, key by key; `None`: thought better of it.
fn line(keys: impl BufRead) -> Result<Option<Secret>, String> {
    const INTERRUPT: u8 = 3;
    const END: u8 = 4;
    const BACKSPACE: [u8; 2] = [8, 127];
    const CLEAR: u8 = 21;
    let mut bytes = Zeroizing::new(Vec::with_capacity(1024));
    for key in keys.bytes() {
        match key.map_err(|e| e.to_string())? {
            b'\n' | b'\r' | END => break,
            INTERRUPT => return Ok(None),
            CLEAR => bytes.clear(),
            key if BACKSPACE.contains(&key) => {
                // a whole character: its following bytes first
                while bytes.pop().is_some_and(|b| b & 0xc0 == 0x80) {}
            }
            _ if bytes.len() >= 1024 => return Err("it is too long".to_owned()),
            key => bytes.push(key),
        }
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    Ok(Some(Secret::new(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_make_a_line() {
        let of = |keys: &str| line(keys.as_bytes()).expect("read").map(|s| s.reveal().to_owned());
        assert_eq!(of("hunter2\nrest").as_deref(), Some("hunter2"));
        assert_eq!(of("hunterü\x7f2\r").as_deref(), Some("hunter2"));
        assert_eq!(of("wrong\x15right\n").as_deref(), Some("right"));
        assert_eq!((of("half\x03"), of("\x7f\n").as_deref()), (None, Some("")));
        assert!(line(&b"\xff\n"[..]).is_err());
    }

    #[test]
    fn a_file_is_taken_without_its_last_newline() {
        let of = |text: &str| read(text.as_bytes()).map(|s| s.reveal().to_owned());
        assert_eq!(of("hunter2\n"), Ok("hunter2".to_owned()));
        assert_eq!(of("a\nb\r\n"), Ok("a\nb".to_owned()));
        assert_eq!(of(" spaces stay "), Ok(" spaces stay ".to_owned()));
        assert!(of("\n").is_err() && of("").is_err());
        assert!(read(&b"hunter2\xff"[..]).is_err_and(|e| !e.contains("hunter2")));
    }
}
