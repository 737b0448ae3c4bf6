//! The findings, one line each; secrets that were seen on the way are blotted out of all of them.

use crate::cli::{CliError, Format, Screen, clean, painted};
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Status {
    #[serde(rename = "ok")]
    Fine,
    #[serde(rename = "skip")]
    Skipped,
    #[serde(rename = "warn")]
    Doubtful,
    #[serde(rename = "FAIL")]
    Failed,
}

impl Status {
    const fn word(self) -> &'static str {
        match self {
            Status::Fine => "ok",
            Status::Skipped => "skip",
            Status::Doubtful => "warn",
            Status::Failed => "FAIL",
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Finding {
    pub status: Status,
    /// What was looked at, in a word or two.
    pub area: &'static str,
    pub what: String,
    /// What to do; none where all is well.
    pub next: Option<String>,
}

pub struct Report {
    pub findings: Vec<Finding>,
    secrets: Vec<String>,
}

/// Shorter ones would blot out words by chance, and keep nothing secret.
const SECRET_MIN: usize = 4;

impl Report {
    pub fn new() -> Self {
        Self { findings: Vec::new(), secrets: Vec::new() }
    }

    /// Something that must not be said, wherever it turns up.
    pub fn secret(&mut self, text: &str) {
        let text = text.trim();
        if text.len() >= SECRET_MIN {
            self.secrets.push(text.to_owned());
        }
    }

    pub fn fine(&mut self, area: &'static str, what: impl Into<String>) {
        self.add(Status::Fine, area, what.into(), None);
    }

    pub fn skipped(&mut self, area: &'static str, what: impl Into<String>) {
        self.add(Status::Skipped, area, what.into(), None);
    }

    pub fn doubtful(&mut self, area: &'static str, what: impl Into<String>, next: impl Into<String>) {
        self.add(Status::Doubtful, area, what.into(), Some(next.into()));
    }

    pub fn failed(&mut self, area: &'static str, what: impl Into<String>, next: impl Into<String>) {
        self.add(Status::Failed, area, what.into(), Some(next.into()));
    }

    /// A failure that brings its own next step.
    pub fn error(&mut self, area: &'static str, error: &CliError) {
        let next = error.next_step().unwrap_or("millwright doctor --help").to_owned();
        self.failed(area, error.to_string(), next);
    }

    fn add(&mut self, status: Status, area: &'static str, what: String, next: Option<String>) {
        self.findings.push(Finding { status, area, what, next });
    }

    fn told(&self, text: &str) -> String {
        let blotted = self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "…"));
        clean(&blotted)
    }

    fn count(&self, status: Status) -> usize {
        self.findings.iter().filter(|finding| finding.status == status).count()
    }

    pub fn lines(&self, colour: bool) -> Vec<String> {
        let width = self.findings.iter().map(|finding| finding.area.len()).max().unwrap_or(0);
        let line = |finding: &Finding| {
            let word = format!("{:4}", finding.status.word());
            let next = finding.next.as_ref().map(|next| format!("; {}", self.told(next))).unwrap_or_default();
            let word = painted(&word, finding.status.word(), colour);
            format!("{word}  {:width$}  {}{next}", finding.area, self.told(&finding.what))
        };
        self.findings.iter().map(line).collect()
    }

    fn summary(&self) -> String {
        let (doubtful, failed) = (self.count(Status::Doubtful), self.count(Status::Failed));
        match (failed, doubtful) {
            (0, 0) => "nothing is wrong".to_owned(),
            (0, n) => format!("nothing failed; {n} to think about"),
            (n, _) => format!("{n} failed"),
        }
    }

    fn document(&self) -> serde_json::Value {
        let check = |finding: &Finding| {
            serde_json::json!({
                "status": finding.status,
                "area": finding.area,
                "what": self.told(&finding.what),
                "next": finding.next.as_ref().map(|next| self.told(next)),
            })
        };
        serde_json::json!({
            "checks": self.findings.iter().map(check).collect::<Vec<_>>(),
            "warned": self.count(Status::Doubtful),
            "failed": self.count(Status::Failed),
        })
    }

    /// Says it all, and ends with 0 when nothing failed.
    pub fn print(&self, format: Format) -> ExitCode {
        let text = match format {
            Format::Table | Format::Wide => {
                let mut lines = self.lines(Screen::stdout().colour);
                lines.push(self.summary());
                lines.join("\n") + "\n"
            }
            Format::Json => format!("{:#}\n", self.document()),
            Format::Yaml => serde_yaml_ng::to_string(&self.document()).unwrap_or_else(|e| format!("# {e}\n")),
            Format::Name => {
                let failed = self.findings.iter().filter(|finding| finding.status == Status::Failed);
                failed.map(|finding| format!("{}\n", finding.area)).collect()
            }
        };
        // a reader who has gone has left the exit code
        drop(std::io::stdout().lock().write_all(text.as_bytes()));
        if self.count(Status::Failed) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_a_line_and_no_secret_is_in_it() {
        let mut report = Report::new();
        report.fine("data", "all there");
        report.failed("token file", "holds mwt_geheim\nand more", "chmod 600 mwt_geheim");
        // learnt later, blotted out everywhere
        report.secret("mwt_geheim\n");
        report.secret("a");
        assert_eq!(
            report.lines(false),
            ["ok    data        all there", "FAIL  token file  holds … and more; chmod 600 …"]
        );
        assert!(!report.document().to_string().contains("geheim"));
        assert_eq!(report.summary(), "1 failed");
    }
}
