//! Machines and runs, asked for and looked at through the command line.

use crate::process::until;
use crate::server::Client;
use serde_json::Value;

impl Client {
    /// A simulated machine with these labels.
    pub fn register(&self, machine: &str, labels: &[&str]) {
        let mut words = vec!["machine", "register", machine, "--provider", "sim"];
        labels.iter().for_each(|label| words.extend(["--label", label]));
        self.ok(&words);
    }

    /// Starts a run and answers with its id.
    pub fn start(&self, machine: &str, run_type: &str) -> String {
        self.ok(&["run", "start", machine, "--type", run_type, "-o", "name"]).trim().to_owned()
    }

    pub fn show(&self, run: &str) -> Value {
        self.json(&["run", "show", run])
    }

    /// All runs, newest first.
    pub fn runs(&self) -> Vec<Value> {
        list(&self.json(&["run", "list"]), "runs")
    }

    pub fn machines(&self) -> Vec<Value> {
        list(&self.json(&["machine", "list"]), "machines")
    }

    pub fn executions(&self) -> Vec<Value> {
        list(&self.json(&["engine", "list"]), "executions")
    }

    /// What was journaled about a run's execution.
    pub fn journal(&self, run: &str) -> Vec<String> {
        let described = self.json(&["engine", "describe", run]);
        list(&described, "journal").iter().map(|entry| text(entry, "entry").to_owned()).collect()
    }

    /// Waits until a run has ended, and answers with it.
    pub fn ended(&self, run: &str) -> Value {
        self.ok(&["run", "wait", run, "--for", "terminal", "--timeout", "100s"]);
        self.show(run)
    }

    /// Waits until all runs have ended. They must have succeeded.
    pub fn all_succeed(&self) -> Vec<Value> {
        let ended = |run: &Value| matches!(text(run, "phase"), "SUCCEEDED" | "FAILED" | "CANCELED");
        let runs = until("all runs end", || Some(self.runs()).filter(|runs| runs.iter().all(ended)));
        let failed: Vec<&Value> = runs.iter().filter(|run| text(run, "phase") != "SUCCEEDED").collect();
        assert!(failed.is_empty(), "these did not succeed: {failed:#?}");
        runs
    }
}

pub fn list(value: &Value, name: &str) -> Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name} in {value:#}")).clone()
}

pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text {name} in {value:#}"))
}
