//! Dashboard and alerts speak of metrics, labels and values that there are, and each alert says what to do.

use crate::scrape::promtool;
use domain::lifecycle::State;
use domain::metric::{self, Kind, Metric};
use domain::stage::FailureClass;
use serde_json::Value;
use std::collections::BTreeSet;
use testkit::golden::root;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join("deploy").join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn dashboard() -> Value {
    serde_json::from_str(&read("grafana/millwright.json")).expect("JSON")
}

/// Every expression of the dashboard, with Grafana's own variables filled in.
fn shown() -> Vec<String> {
    let mut found = Vec::new();
    expressions(&dashboard(), &mut found);
    assert!(found.len() > 30, "found the expressions");
    found.into_iter().map(|e| e.replace("$__rate_interval", "5m").replace("$instance", ".*")).collect()
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|v| expressions(v, found));
        }
        Value::Array(items) => items.iter().for_each(|v| expressions(v, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The alerts, as name, expression and annotations.
fn alerts() -> Vec<(String, String, Value)> {
    let file: Value = serde_yaml_ng::from_str(&read("prometheus/alerts.yml")).expect("YAML");
    let groups = file["groups"].as_array().expect("groups").iter();
    let rules = groups.flat_map(|g| g["rules"].as_array().expect("rules").clone());
    let text = |v: &Value| v.as_str().expect("text").to_owned();
    rules.map(|r| (text(&r["alert"]), text(&r["expr"]), r["annotations"].clone())).collect()
}

/// Labels that Prometheus adds by itself.
const FOREIGN_LABELS: [&str; 3] = ["instance", "job", "le"];
/// Metrics that Prometheus makes by itself.
const FOREIGN_METRICS: [&str; 1] = ["up"];

/// Every name of ours in an expression, with what stands in braces after it.
fn selectors(expression: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("millwright_") {
        rest = &rest[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let braces = after.strip_prefix('{').and_then(|a| a.split_once('}')).map_or("", |(inside, _)| inside);
        found.push((name.to_owned(), braces.to_owned()));
        rest = after;
    }
    found
}

fn metric_called(name: &str) -> Metric {
    let histogram = |m: &&Metric| {
        matches!(m.kind, Kind::Histogram(_))
            && ["_bucket", "_sum", "_count"].iter().any(|s| name.strip_suffix(s) == Some(m.name))
    };
    let plain = |m: &&Metric| m.name == name && !matches!(m.kind, Kind::Histogram(_));
    let found = metric::ALL.iter().find(|m| plain(m) || histogram(m));
    *found.unwrap_or_else(|| panic!("{name} is not in the catalogue (a histogram has _bucket, _sum and _count)"))
}

/// The values that a label of a metric can have; `None`: anything.
fn values(metric: &Metric, label: &str) -> Option<BTreeSet<String>> {
    fn states<S: State>() -> Vec<&'static str> {
        S::ALL.iter().map(|s| s.as_str()).collect()
    }
    let all: Vec<&str> = match label {
        "phase" => [states::<domain::machine::Phase>(), states::<domain::run::RunPhase>()].concat(),
        "from" | "to" => [
            states::<domain::machine::Phase>(),
            states::<domain::run::RunPhase>(),
            states::<domain::step::StepState>(),
            states::<domain::token::TokenState>(),
            states::<domain::condition::ConditionStatus>(),
            states::<domain::credential::CredentialState>(),
            states::<domain::pin::PinState>(),
            vec!["new"],
        ]
        .concat(),
        "lifecycle" => {
            vec![
                domain::machine::Phase::ENTITY,
                domain::run::RunPhase::ENTITY,
                domain::step::StepState::ENTITY,
                domain::token::TokenState::ENTITY,
                domain::condition::ConditionStatus::ENTITY,
                domain::credential::CredentialState::ENTITY,
                domain::pin::PinState::ENTITY,
            ]
        }
        "class" => FailureClass::ALL.map(FailureClass::as_str).to_vec(),
        "waits_for" => metric::WAITS_FOR.to_vec(),
        "lane" => metric::LANES.to_vec(),
        "reason" => vec!["conflict", "full", "away", "unknown", "defect"],
        "door" => vec![api::Door::Grpc.as_str(), api::Door::Rest.as_str()],
        "outcome" if metric.name == metric::TLS_RELOADS.name => vec!["ok", "failed"],
        "outcome" => vec!["done", "retried", "failed", "canceled", "undone", "undo_failed"],
        "code" => vec!["OK", "INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE"],
        _ => return None,
    };
    Some(all.into_iter().map(str::to_owned).collect())
}

fn check(expression: &str) {
    let selectors = selectors(expression);
    let mut known: BTreeSet<&str> = FOREIGN_LABELS.into_iter().collect();
    for (name, braces) in &selectors {
        let metric = metric_called(name);
        known.extend(metric.labels);
        for matcher in braces.split(',').filter(|m| !m.is_empty()) {
            let (label, wanted) = matcher.split_once(['=', '!']).unwrap_or_else(|| panic!("{matcher} in {expression}"));
            let ours = metric.labels.contains(&label) || FOREIGN_LABELS.contains(&label);
            assert!(ours, "{name} has no label {label}: {expression}");
            if let Some(values) = values(&metric, label) {
                let wanted = wanted.trim_start_matches(['=', '~']).trim_matches('"');
                for value in wanted.split('|') {
                    assert!(values.contains(value), "{label} is never {value:?}: {expression}");
                }
            }
        }
    }
    for grouping in ["by (", "on (", "group_left ("] {
        for part in expression.split(grouping).skip(1) {
            let labels = part.split(')').next().unwrap_or_default().split(',').map(str::trim);
            labels.for_each(|l| assert!(known.contains(l), "{l} is no label of what is grouped by it: {expression}"));
        }
    }
    let foreign = FOREIGN_METRICS.iter().any(|m| expression.starts_with(m));
    assert!(!selectors.is_empty() || foreign, "nothing of ours is in {expression}");
}

#[test]
fn dashboard_and_alerts_speak_of_metrics_that_there_are() {
    shown().iter().for_each(|e| check(e));
    alerts().iter().for_each(|(_, e, _)| check(e));
}

/// What is measured is also looked at.
#[test]
fn every_metric_is_on_the_dashboard_or_in_an_alert() {
    let all: Vec<String> = shown().into_iter().chain(alerts().into_iter().map(|a| a.1)).collect();
    for metric in metric::ALL {
        assert!(all.iter().any(|e| e.contains(metric.name)), "{} is shown nowhere", metric.name);
    }
}

#[test]
fn panels_have_places_of_their_own_and_titles() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "{} stands twice", panel["id"]);
        assert!(panel["title"].as_str().is_some_and(|t| !t.is_empty()));
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24, "{} is too wide", panel["title"]);
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{} lies over another", panel["title"]);
            }
        }
    }
}

#[test]
fn every_alert_says_what_is_wrong_and_what_to_do() {
    let mut seen = BTreeSet::new();
    for (name, _, annotations) in alerts() {
        assert!(name.starts_with("Millwright") && seen.insert(name.clone()), "{name}");
        for part in ["summary", "description"] {
            assert!(annotations[part].as_str().is_some_and(|t| t.len() > 20), "{name} has no {part}");
        }
        assert_eq!(annotations["runbook"], format!("docs/operations.md#alert-{name}"));
    }
    let runbook = root().join("docs/operations.md");
    if let Ok(text) = std::fs::read_to_string(&runbook) {
        for name in &seen {
            assert!(text.contains(&format!("alert-{name}")), "the runbook has no anchor alert-{name}");
        }
    }
}

#[test]
fn prometheus_itself_accepts_them() {
    let folder = root().join("deploy/prometheus");
    let file = |name: &str| folder.join(name).display().to_string();
    promtool(&["check", "rules", &file("alerts.yml")], "");
    promtool(&["test", "rules", &file("alerts_test.yml")], "");
    promtool(&["check", "config", "--syntax-only", &file("scrape.yml")], "");
    // the dashboard's expressions, as rules that record them
    let rules: Vec<Value> = shown()
        .iter()
        .enumerate()
        .map(|(n, expr)| serde_json::json!({"record": format!("dashboard:panel:{n}"), "expr": expr}))
        .collect();
    let scratch = tempfile::tempdir().expect("a folder");
    let path = scratch.path().join("dashboard.yml");
    let text = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string();
    std::fs::write(&path, text).expect("written");
    promtool(&["check", "rules", &path.display().to_string()], "");
}
