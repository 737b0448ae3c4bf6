//! Figures, each beside its limit: a table for people, JSON for machines.

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Of measured by limit.
    AtMost(f64),
    AtLeast(f64),
    /// Shown for comparison.
    None,
}

impl Goal {
    fn text(self) -> String {
        match self {
            Goal::AtMost(x) => format!("≤ {}", plain(x)),
            Goal::AtLeast(x) => format!("≥ {}", plain(x)),
            Goal::None => "–".to_owned(),
        }
    }
}

/// One thing that was measured, with every sample. Where the samples of both come in pairs, taken in turns,
/// the noise is that of the pairs' ratios.
pub struct Figure {
    pub section: &'static str,
    pub database: &'static str,
    pub what: String,
    pub unit: &'static str,
    pub measured: Vec<f64>,
    pub limit: Vec<f64>,
    /// What the limit is.
    pub against: String,
    pub goal: Goal,
}

impl Figure {
    pub fn ratio(&self) -> f64 {
        middle(&self.measured) / middle(&self.limit)
    }

    pub fn verdict(&self) -> &'static str {
        let ratio = self.ratio();
        match self.goal {
            Goal::None => "–",
            // of something that is not a number nothing can be said
            Goal::AtMost(x) if ratio <= x => "met",
            Goal::AtLeast(x) if ratio >= x => "met",
            Goal::AtMost(_) | Goal::AtLeast(_) => "MISSED",
        }
    }

    /// The smallest and the largest ratio.
    pub fn noise(&self) -> (f64, f64) {
        let limit = middle(&self.limit);
        let ratios: Vec<f64> = if self.measured.len() == self.limit.len() {
            self.measured.iter().zip(&self.limit).map(|(m, l)| m / l).collect()
        } else {
            self.measured.iter().map(|m| m / limit).collect()
        };
        let fold = |f: fn(f64, f64) -> f64| ratios.iter().copied().reduce(f).unwrap_or(f64::NAN);
        (fold(f64::min), fold(f64::max))
    }

    fn json(&self) -> Value {
        let goal = match self.goal {
            Goal::AtMost(x) => json!({"at_most": x}),
            Goal::AtLeast(x) => json!({"at_least": x}),
            Goal::None => Value::Null,
        };
        let (min, max) = self.noise();
        json!({
            "section": self.section, "database": self.database, "what": self.what, "unit": self.unit,
            "measured": middle(&self.measured), "limit": middle(&self.limit), "against": self.against,
            "ratio": self.ratio(), "ratio_min": min, "ratio_max": max, "goal": goal, "verdict": self.verdict(),
            "measured_samples": self.measured, "limit_samples": self.limit,
        })
    }
}

/// Points for a line chart.
pub struct Series {
    pub section: &'static str,
    pub title: String,
    pub x: &'static str,
    pub y: &'static str,
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

#[derive(Default)]
pub struct Report {
    pub figures: Vec<Figure>,
    pub series: Vec<Series>,
    /// What stands beside the figures: counts, how it was set up.
    pub notes: Vec<String>,
}

impl Report {
    pub fn add(&mut self, figure: Figure) {
        println!("    {}", one_line(&figure));
        self.figures.push(figure);
    }

    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        println!("    {text}");
        self.notes.push(text);
    }

    pub fn json(&self, machine: &Value) -> Value {
        let series = self.series.iter().map(|s| {
            let lines = s.lines.iter().map(|(name, points)| json!({"name": name, "points": points}));
            json!({"section": s.section, "title": s.title, "x": s.x, "y": s.y, "lines": lines.collect::<Vec<_>>()})
        });
        json!({
            "machine": machine,
            "figures": self.figures.iter().map(Figure::json).collect::<Vec<_>>(),
            "series": series.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    /// Section by section, whatever order they were measured in.
    pub fn sorted(&mut self) {
        let mut order: Vec<&str> = Vec::new();
        for f in &self.figures {
            if !order.contains(&f.section) {
                order.push(f.section);
            }
        }
        self.figures.sort_by_key(|f| order.iter().position(|s| *s == f.section));
    }

    pub fn table(&self) -> String {
        let head = ["", "what", "measured", "limit", "ratio", "goal", "verdict", "noise", "the limit is"];
        let mut rows = vec![head.map(str::to_owned)];
        for f in &self.figures {
            let (min, max) = f.noise();
            rows.push([
                f.database.to_owned(),
                f.what.clone(),
                format!("{} {}", plain(middle(&f.measured)), f.unit),
                plain(middle(&f.limit)),
                plain(f.ratio()),
                f.goal.text(),
                f.verdict().to_owned(),
                format!("{}..{}", plain(min), plain(max)),
                f.against.clone(),
            ]);
        }
        let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let mut text = String::new();
        let mut section = "";
        for (n, row) in rows.iter().enumerate() {
            if let Some(f) = n.checked_sub(1).and_then(|n| self.figures.get(n))
                && f.section != section
            {
                section = f.section;
                text.push_str(&format!("\n{section}\n"));
            }
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                let pad = " ".repeat(width - cell.chars().count());
                if matches!(column, 2..=4) { pad + cell } else { cell.clone() + &pad }
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

fn one_line(f: &Figure) -> String {
    let (min, max) = f.noise();
    format!(
        "{} {}: {} {} against {} ({}): {} ({}..{}), goal {}: {}",
        f.database,
        f.what,
        plain(middle(&f.measured)),
        f.unit,
        plain(middle(&f.limit)),
        f.against,
        plain(f.ratio()),
        plain(min),
        plain(max),
        f.goal.text(),
        f.verdict()
    )
}

/// The median.
pub fn middle(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Three digits or so, as people write numbers.
pub fn plain(x: f64) -> String {
    if x.is_nan() {
        return "–".to_owned();
    }
    let digits = match x.abs() {
        a if a >= 100.0 => 0,
        a if a >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{x:.digits$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), ""), |(w, r)| (w, r));
    let mut grouped = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(c);
    }
    if rest.is_empty() { grouped } else { format!("{grouped}.{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(measured: &[f64], limit: &[f64], goal: Goal) -> Figure {
        Figure {
            section: "reads",
            database: "SQLite",
            what: "x".to_owned(),
            unit: "µs",
            measured: measured.to_vec(),
            limit: limit.to_vec(),
            against: "y".to_owned(),
            goal,
        }
    }

    #[test]
    fn a_figure_is_judged_by_its_medians_and_its_noise_by_pairs() {
        let f = figure(&[10.0, 12.0, 50.0], &[10.0, 10.0, 40.0], Goal::AtMost(1.5));
        assert_eq!((f.ratio(), f.verdict(), f.noise()), (1.2, "met", (1.0, 1.25)));
        assert_eq!(figure(&[1.0], &[3.0], Goal::AtLeast(0.5)).verdict(), "MISSED");
        assert_eq!(figure(&[], &[1.0], Goal::AtMost(1.0)).verdict(), "MISSED", "nothing measured is not met");
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [1234567.0, 999.6, 42.25, 1.234, -1234.0].map(plain),
            ["1,234,567", "1,000", "42.2", "1.23", "-1,234"]
        );
    }
}
