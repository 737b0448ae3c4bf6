//! Printing: tables that fit the terminal, lists page by page in every format, and single messages.

use super::exit::CliError;
use super::json::{self, Wire};
use super::text::{clean, cut, now, or_none};
use clap::ValueEnum;
use jiff::Timestamp;
use std::io::{IsTerminal as _, Write};

// How to print. (No doc comments on the variants: clap would blow every help up with them.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    // aligned columns, times relative
    Table,
    // more columns, times in RFC 3339
    Wide,
    // the message with the API's field names
    Json,
    // the same as YAML
    Yaml,
    // ids, one per line
    Name,
}

impl Format {
    pub fn is_for_people(self) -> bool {
        matches!(self, Format::Table | Format::Wide)
    }
}

/// How much of a list is asked for at once: what is held in memory, never more.
const PAGE: u32 = 200;
/// The width of a terminal that does not tell.
const DEFAULT_WIDTH: usize = 100;
/// Text columns are not cut below this.
const FLEX_MIN: usize = 6;

/// What stdout is.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// How wide a line may be; none when the reader is no terminal.
    pub width: Option<usize>,
    pub colour: bool,
    /// Whether what was written can be written over.
    pub live: bool,
}

impl Screen {
    /// A file or a pipe.
    pub const PLAIN: Self = Self { width: None, colour: false, live: false };

    pub fn stdout() -> Self {
        if !std::io::stdout().is_terminal() {
            return Self::PLAIN;
        }
        let live = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let colour = live && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        // shells seldom export COLUMNS: ask the terminal itself
        let asked = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        let width = env_number("COLUMNS").or(asked).unwrap_or(DEFAULT_WIDTH);
        Self { width: Some(width), colour, live }
    }

    pub fn is_terminal(self) -> bool {
        self.width.is_some()
    }
}

pub fn env_number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.trim().parse().ok().filter(|n| *n > 0)
}

/// The colour of a state's name, where it has one. Never the only sign: the word stands there too.
pub fn tint(word: &str) -> Option<&'static str> {
    match word.split(' ').next_back().unwrap_or(word) {
        "SUCCEEDED" | "IN_SERVICE" | "READY" | "active" | "installed" | "resolved" | "done" | "ok" | "✓" => {
            Some("32")
        }
        "FAILED" | "FAIL" | "failed" | "install_failed" | "terminated" | "refused" | "✗" => Some("31"),
        "RUNNING" | "PROVISIONING" | "running" | "pending" | "installing" | "deprovisioning" | "●" => Some("36"),
        "CANCELED" | "MAINTENANCE" | "RMA" | "canceled" | "undoing" | "reprovision" | "migrating" | "warn" => {
            Some("33")
        }
        "WAITING" | "RETIRED" | "retired" | "expired" | "revoked" | "skip" | "·" => Some("2"),
        _ => None,
    }
}

/// Colours a text by a state's word.
pub fn painted(text: &str, word: &str, colour: bool) -> String {
    match tint(word).filter(|_| colour) {
        Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
        None => text.to_owned(),
    }
}

/// In which of the two tables a column stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Both,
    Narrow,
    Wide,
}

/// One column of a table over `T`.
pub struct Column<T> {
    title: &'static str,
    cell: fn(&T, Timestamp) -> String,
    shown: Shown,
    flex: bool,
    state: bool,
}

impl<T> Column<T> {
    pub const fn new(title: &'static str, cell: fn(&T, Timestamp) -> String) -> Self {
        Self { title, cell, shown: Shown::Both, flex: false, state: false }
    }

    /// Only in the wide table.
    pub const fn wide(mut self) -> Self {
        self.shown = Shown::Wide;
        self
    }

    /// Only in the narrow table.
    pub const fn narrow(mut self) -> Self {
        self.shown = Shown::Narrow;
        self
    }

    /// Free text: may be cut where the terminal is too narrow.
    pub const fn flex(mut self) -> Self {
        self.flex = true;
        self
    }

    /// The name of a state, coloured on a terminal.
    pub const fn state(mut self) -> Self {
        self.state = true;
        self
    }
}

/// A table that is printed piece by piece: its columns grow with what comes, and never shrink.
pub struct Table<T: 'static> {
    columns: Vec<&'static Column<T>>,
    widths: Vec<usize>,
    screen: Screen,
    begun: bool,
}

impl<T> Table<T> {
    pub fn new(columns: &'static [Column<T>], wide: bool, screen: Screen) -> Self {
        let left_out = if wide { Shown::Narrow } else { Shown::Wide };
        let columns: Vec<_> = columns.iter().filter(|c| c.shown != left_out).collect();
        let widths = columns.iter().map(|c| c.title.chars().count()).collect();
        Self { columns, widths, screen, begun: false }
    }

    /// The lines for these rows, with the head before the first ones.
    pub fn lines<'a>(&mut self, rows: impl Iterator<Item = &'a T>, now: Timestamp) -> Vec<String> {
        let rows: Vec<Vec<String>> =
            rows.map(|row| self.columns.iter().map(|c| or_none(&clean(&(c.cell)(row, now)))).collect()).collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let widths = self.fitted();
        let mut lines = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            let titles: Vec<String> = self.columns.iter().map(|c| c.title.to_owned()).collect();
            lines.push(self.line(&titles, &widths, false));
        }
        lines.extend(rows.iter().map(|row| self.line(row, &widths, self.screen.colour)));
        lines
    }

    /// The widths that fit the screen: the widest text column gives way first. Ids never do.
    fn fitted(&self) -> Vec<usize> {
        let mut widths = self.widths.clone();
        let Some(limit) = self.screen.width else { return widths };
        loop {
            let total: usize = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            let over = total.saturating_sub(limit);
            let flexible = || (0..widths.len()).filter(|i| self.columns[*i].flex && widths[*i] > FLEX_MIN);
            let Some(widest) = flexible().max_by_key(|i| widths[*i]) else { return widths };
            if over == 0 {
                return widths;
            }
            // down to the next widest at most, so that two long columns share the loss
            let next = flexible().filter(|i| *i != widest).map(|i| widths[i]).max().unwrap_or(FLEX_MIN);
            let share = (widths[widest] - next.min(widths[widest] - 1)).min(over);
            widths[widest] = (widths[widest] - share).max(FLEX_MIN);
        }
    }

    fn line(&self, cells: &[String], widths: &[usize], colour: bool) -> String {
        let mut line = String::new();
        for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let text = if self.columns[i].flex { cut(cell, *width) } else { cell.clone() };
            let fill = width.saturating_sub(text.chars().count());
            line.push_str(&painted(&text, &text, colour && self.columns[i].state));
            if i + 1 < cells.len() {
                line.push_str(&" ".repeat(fill + 2));
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// What can stand in a list.
pub trait Listed: Sized + 'static {
    /// What it is in the API.
    type Message: Wire;
    /// The field of the list's response message, and the word for several of them.
    const PLURAL: &'static str;
    /// Whether the response message has a `next_page_token`.
    const PAGED: bool;
    fn columns() -> &'static [Column<Self>];
    fn id(&self) -> &str;
    fn message(&self) -> &Self::Message;
}

/// Writes a list page by page, holding no more than the page.
pub struct ListWriter<W, T: Listed> {
    out: W,
    format: Format,
    table: Table<T>,
    count: usize,
}

impl<W: Write, T: Listed> ListWriter<W, T> {
    pub fn new(out: W, format: Format, screen: Screen) -> Self {
        Self { out, format, table: Table::new(T::columns(), format == Format::Wide, screen), count: 0 }
    }

    pub fn page(&mut self, items: &[T], now: Timestamp) -> Result<(), CliError> {
        if items.is_empty() {
            return Ok(());
        }
        match self.format {
            Format::Table | Format::Wide => {
                for line in self.table.lines(items.iter(), now) {
                    writeln!(self.out, "{line}")?;
                }
            }
            Format::Name => {
                for item in items {
                    writeln!(self.out, "{}", item.id())?;
                }
            }
            Format::Json => {
                for (i, item) in items.iter().enumerate() {
                    match self.count + i {
                        0 => write!(self.out, "{{\n  \"{}\": [\n    ", T::PLURAL)?,
                        _ => write!(self.out, ",\n    ")?,
                    }
                    write!(self.out, "{}", json::shown(item.message())?.pretty(4)?)?;
                }
            }
            Format::Yaml => {
                if self.count == 0 {
                    writeln!(self.out, "{}:", T::PLURAL)?;
                }
                for item in items {
                    write!(self.out, "{}", json::shown(item.message())?.yaml_item()?)?;
                }
            }
        }
        self.count += items.len();
        Ok(self.out.flush()?)
    }

    /// Ends the list; answers how many there were.
    pub fn finish(mut self, next_page_token: &str) -> Result<usize, CliError> {
        let token = serde_json::Value::from(next_page_token);
        let plural = T::PLURAL;
        match self.format {
            Format::Table | Format::Wide | Format::Name => {}
            Format::Json => {
                let close = if self.count == 0 { format!("{{\n  \"{plural}\": []") } else { "\n  ]".to_owned() };
                let token = if T::PAGED { format!(",\n  \"next_page_token\": {token}") } else { String::new() };
                writeln!(self.out, "{close}{token}\n}}")?;
            }
            Format::Yaml => {
                if self.count == 0 {
                    writeln!(self.out, "{plural}: []")?;
                }
                if T::PAGED {
                    writeln!(self.out, "next_page_token: {token}")?;
                }
            }
        }
        self.out.flush()?;
        Ok(self.count)
    }
}

/// Fetches and prints page after page, up to the limit.
pub async fn list<T: Listed>(
    format: Format,
    filter: &str,
    limit: Option<u32>,
    mut fetch: impl AsyncFnMut(i32, String) -> Result<(Vec<T>, String), CliError>,
) -> Result<(), CliError> {
    let mut writer = ListWriter::<_, T>::new(std::io::stdout(), format, Screen::stdout());
    let mut left = limit;
    let mut token = String::new();
    loop {
        let size = left.map_or(PAGE, |n| n.min(PAGE));
        let (items, next) = fetch(i32::try_from(size).unwrap_or(i32::MAX), token.clone()).await?;
        writer.page(&items, now())?;
        left = left.map(|n| n.saturating_sub(u32::try_from(items.len()).unwrap_or(u32::MAX)));
        if !next.is_empty() && next == token {
            return Err(CliError::failed("the server answered with the same page token twice"));
        }
        token = next;
        if token.is_empty() || left == Some(0) {
            break;
        }
    }
    let count = writer.finish(&token)?;
    if format.is_for_people() {
        let plural = T::PLURAL;
        if count == 0 && filter.is_empty() {
            note(&format!("there are no {plural}"));
        } else if count == 0 {
            note(&format!("no {plural} match {filter}"));
        } else if !token.is_empty() {
            note(&format!("there are more {plural}; --limit stopped after {count}"));
        }
    }
    Ok(())
}

/// Prints one message: as a sheet for people, else as it is.
pub fn one<T: Wire>(
    format: Format,
    message: &T,
    id: &str,
    for_people: impl FnOnce(&T) -> Vec<String>,
) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match format {
        Format::Table | Format::Wide => {
            for line in for_people(message) {
                writeln!(out, "{line}")?;
            }
        }
        Format::Json => writeln!(out, "{}", json::shown(message)?.pretty(0)?)?,
        Format::Yaml => write!(out, "{}", json::shown(message)?.yaml()?)?,
        Format::Name => writeln!(out, "{id}")?,
    }
    Ok(out.flush()?)
}

/// Prints one message of a stream: a line for people, else a document of its own. JSON stays on one line.
pub fn streamed<T: Wire>(
    format: Format,
    message: &T,
    id: &str,
    line: impl FnOnce(&T) -> String,
) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match format {
        Format::Table | Format::Wide => writeln!(out, "{}", line(message))?,
        Format::Json => writeln!(out, "{}", json::shown(message)?.line()?)?,
        Format::Yaml => write!(out, "---\n{}", json::shown(message)?.yaml()?)?,
        Format::Name => writeln!(out, "{id}")?,
    }
    Ok(out.flush()?)
}

/// A word to the person, beside the output.
pub fn note(text: &str) {
    writeln!(std::io::stderr().lock(), "{text}").ok();
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
