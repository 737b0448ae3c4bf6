//! Reads the text that Prometheus reads, and asks Prometheus' own tool what it thinks of things.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

#[derive(Default)]
pub struct Scrape {
    pub help: BTreeMap<String, String>,
    pub kind: BTreeMap<String, String>,
    pub samples: Vec<Sample>,
}

pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Scrape {
    pub fn parse(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines().filter(|l| !l.is_empty()) {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
                scrape.help.insert(name.to_owned(), help.to_owned());
            } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
                scrape.kind.insert(name.to_owned(), kind.to_owned());
            } else {
                scrape.samples.push(sample(line));
            }
        }
        scrape
    }

    /// The sum over all samples of a name.
    pub fn sum(&self, name: &str) -> f64 {
        self.samples.iter().filter(|s| s.name == name).map(|s| s.value).sum()
    }

    /// The metric that a sample belongs to: a histogram has several.
    pub fn metric_of<'a>(&self, name: &'a str) -> &'a str {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        base.filter(|base| self.kind.get(*base).is_some_and(|k| k == "histogram")).unwrap_or(name)
    }
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("a sample: {line}"));
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    // no value of ours holds a comma or an escaped quote
    let labels = labels.trim_end_matches('}').split(',').filter(|l| !l.is_empty()).map(|label| {
        let (name, value) = label.split_once('=').unwrap_or_else(|| panic!("a label: {line}"));
        (name.to_owned(), value.trim_matches('"').to_owned())
    });
    let value = value.parse().unwrap_or_else(|_| panic!("a number: {line}"));
    Sample { name: name.to_owned(), labels: labels.collect(), value }
}

pub fn names(labels: &BTreeMap<String, String>) -> BTreeSet<&str> {
    labels.keys().map(String::as_str).collect()
}

/// Runs `promtool`; a tool that is missing is a failed test that says how to get it.
pub fn promtool(arguments: &[&str], input: &str) {
    let spawned = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.unwrap_or_else(|e| {
        panic!("promtool does not run ({e}): apt-get install -y --no-install-recommends prometheus")
    });
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ends");
    let said = [output.stdout, output.stderr].map(|s| String::from_utf8_lossy(&s).into_owned()).join("\n");
    assert!(output.status.success(), "promtool {arguments:?}:\n{said}");
}
