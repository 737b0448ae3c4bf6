//! A sheet: what `show` prints for people. Labels at the left, values beside them, tables below.

use super::output::{Column, Screen, Table, painted};
use super::text::clean;
use jiff::Timestamp;

pub struct Sheet {
    screen: Screen,
    now: Timestamp,
    rows: Vec<(&'static str, Vec<String>)>,
    below: Vec<String>,
}

impl Sheet {
    pub fn new(screen: Screen, now: Timestamp) -> Self {
        Self { screen, now, rows: Vec::new(), below: Vec::new() }
    }

    /// A row, left out when there is nothing to say.
    pub fn row(&mut self, label: &'static str, value: &str) -> &mut Self {
        if !value.is_empty() {
            self.rows.push((label, vec![clean(value)]));
        }
        self
    }

    /// A row with the name of a state, coloured on a terminal.
    pub fn state(&mut self, label: &'static str, word: &str) -> &mut Self {
        if !word.is_empty() {
            self.rows.push((label, vec![painted(&clean(word), word, self.screen.colour)]));
        }
        self
    }

    /// A row of several lines.
    pub fn rows(&mut self, label: &'static str, values: impl IntoIterator<Item = String>) -> &mut Self {
        let values: Vec<String> = values.into_iter().map(|value| clean(&value)).collect();
        if !values.is_empty() {
            self.rows.push((label, values));
        }
        self
    }

    /// An empty line between rows, where there are rows on both sides.
    pub fn gap(&mut self) -> &mut Self {
        if self.rows.last().is_some_and(|(label, _)| !label.is_empty()) {
            self.rows.push(("", vec![String::new()]));
        }
        self
    }

    /// A table below the rows, left out when it is empty. It is never cut: a sheet shows all.
    pub fn table<T>(&mut self, title: &str, columns: &'static [Column<T>], items: &[T]) -> &mut Self {
        if !items.is_empty() {
            let screen = Screen { width: None, ..self.screen };
            self.below.extend([String::new(), title.to_owned()]);
            let lines = Table::new(columns, true, screen).lines(items.iter(), self.now);
            self.below.extend(lines.into_iter().map(|line| format!("  {line}")));
        }
        self
    }

    pub fn lines(mut self) -> Vec<String> {
        if self.rows.last().is_some_and(|(label, _)| label.is_empty()) {
            self.rows.pop();
        }
        let width = self.rows.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        let mut lines = Vec::new();
        for (label, values) in self.rows {
            for (i, value) in values.iter().enumerate() {
                let label = if i == 0 { label } else { "" };
                lines.push(format!("{label:width$}  {value}").trim_end().to_owned());
            }
        }
        lines.extend(self.below);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_aligned_and_what_is_empty_is_left_out() {
        let mut sheet = Sheet::new(Screen { width: Some(20), ..Screen::PLAIN }, Timestamp::UNIX_EPOCH);
        sheet.row("Machine", "m-1").row("Rack", "").rows("Labels", ["a=1".to_owned(), "b=2".to_owned()]);
        sheet.gap().gap().state("Phase", "READY").gap();
        static COLUMNS: [Column<u8>; 1] = [Column::new("NUMBER", |n: &u8, _| n.to_string())];
        sheet.table("Numbers", &COLUMNS, &[1, 2]).table("None", &COLUMNS, &[]);
        assert_eq!(
            sheet.lines(),
            [
                "Machine  m-1",
                "Labels   a=1",
                "         b=2",
                "",
                "Phase    READY",
                "",
                "Numbers",
                "  NUMBER",
                "  1",
                "  2"
            ]
        );
    }
}
