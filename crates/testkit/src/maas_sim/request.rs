//! What is asked and what is answered, in the shapes MAAS takes and gives them.

use super::log::{By, Told};
use crate::http_faults::Asked;
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) const JSON: &str = "application/json; charset=utf-8";
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// A request, taken apart.
pub(super) struct Call {
    pub method: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    /// What the body holds as a form; empty for JSON.
    pub form: Vec<(String, String)>,
    /// What the body holds as JSON: few handlers look at it.
    pub json: Vec<(String, String)>,
    /// As it came.
    pub authorization: String,
    pub by: By,
    /// An administrator's key.
    pub admin: bool,
    /// Machines made later than this one are not seen by checks: they were not committed when it came.
    pub arrived: u64,
}

impl Call {
    pub fn read(asked: &Asked, arrived: u64) -> Self {
        let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
        let header = |name: &str| asked.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let kind = header("content-type");
        let (mut form, mut json) = (Vec::new(), Vec::new());
        if kind.starts_with("application/json") {
            json = serde_json::from_slice(&asked.body).map(flat).unwrap_or_default();
        } else if let Some((_, boundary)) = kind.split_once("boundary=") {
            form = multipart(&asked.body, boundary.trim_matches('"'));
        } else {
            form = pairs(&String::from_utf8_lossy(&asked.body));
        }
        Self {
            method: asked.method.to_string(),
            path: decode(path),
            query: pairs(query),
            form,
            json,
            authorization: header("authorization"),
            by: By::Nobody,
            admin: false,
            arrived,
        }
    }

    /// The operation: of the query first, then of the form.
    pub fn op(&self) -> Option<&str> {
        let of = |from: &'_ [(String, String)]| from.iter().position(|(name, _)| name == "op");
        match of(&self.query) {
            Some(at) => Some(&self.query[at].1),
            None => of(&self.form).map(|at| self.form[at].1.as_str()),
        }
    }

    /// A field of the form; of the query where it is a read.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).last().copied()
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        let from = if matches!(self.method.as_str(), "GET" | "DELETE") { &self.query } else { &self.form };
        from.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Handlers that look at whatever came see JSON too.
    pub fn with_json(&mut self) {
        self.form.append(&mut self.json);
    }

    /// A real boolean.
    pub fn boolean(&self, name: &str) -> Option<bool> {
        match self.get(name)?.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" | "y" | "t" => Some(true),
            "false" | "0" | "no" | "off" | "n" | "f" => Some(false),
            _ => None,
        }
    }

    /// A checkbox: anything but absent, empty or `false` is a yes.
    pub fn checkbox(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !value.is_empty() && !value.eq_ignore_ascii_case("false"))
    }

    /// The account, where there is one.
    pub fn account(&self) -> &str {
        match &self.by {
            By::Account(name) | By::Scenery(name) => name,
            By::Nobody | By::Itself => "",
        }
    }
}

fn flat(value: Value) -> Vec<(String, String)> {
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let Value::Object(map) = value else { return Vec::new() };
    map.into_iter()
        .flat_map(|(name, value)| match value {
            Value::Array(all) => all.into_iter().map(|one| (name.clone(), text(one))).collect(),
            one => vec![(name, text(one))],
        })
        .collect()
}

pub(super) fn pairs(text: &str) -> Vec<(String, String)> {
    let split = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
    };
    text.split('&').filter(|part| !part.is_empty()).map(split).collect()
}

pub(super) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|h| std::str::from_utf8(h).ok());
        match hex.filter(|_| bytes[at] == b'%').and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn multipart(body: &[u8], boundary: &str) -> Vec<(String, String)> {
    let body = String::from_utf8_lossy(body);
    let field = |part: &str| {
        let (head, value) = part.split_once("\r\n\r\n")?;
        let name = head.split("name=\"").nth(1)?.split('"').next()?;
        Some((name.to_owned(), value.strip_suffix("\r\n").unwrap_or(value).to_owned()))
    };
    body.split(&format!("--{boundary}")).filter_map(field).collect()
}

pub(super) struct Answer {
    pub status: u16,
    pub kind: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    pub told: Told,
}

/// What a handler comes to: both are answers, and the second kind is a refusal.
pub(super) type Outcome = Result<Answer, Answer>;

impl Answer {
    pub fn new(status: u16, kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, kind, headers: Vec::new(), body: body.into(), told: Told::Nothing }
    }

    pub fn json(value: &Value) -> Self {
        Self::new(200, JSON, value.to_string())
    }

    pub fn text(status: u16, text: impl Into<String>) -> Self {
        Self::new(status, TEXT, text.into())
    }

    /// Some texts come without their character set.
    pub fn bare(status: u16, text: impl Into<String>) -> Self {
        Self::new(status, "text/plain", text.into())
    }

    pub fn gone() -> Self {
        Self::bare(204, "")
    }

    /// Not allowed: nothing is said.
    pub fn forbidden() -> Self {
        Self::text(403, "")
    }

    /// What is not there, as Django says it.
    pub fn missing(what: &str) -> Self {
        Self::bare(404, format!("No {what} matches the given query."))
    }

    pub fn field(name: &str, text: impl Into<String>) -> Self {
        let mut errors = FormErrors::default();
        errors.add(name, text);
        errors.answer()
    }
}

/// An object with more in it that is written already: records are written often, and most of them is the same.
pub(super) fn with_raw(object: &Value, more: &[(&str, &str)]) -> String {
    let mut text = object.to_string();
    text.pop();
    for (name, value) in more {
        let comma = if text.len() > 1 { "," } else { "" };
        for part in [comma, "\"", name, "\":", value] {
            text.push_str(part);
        }
    }
    text.push('}');
    text
}

/// What is wrong with a form.
#[derive(Default)]
pub(super) struct FormErrors(BTreeMap<String, Vec<String>>);

impl FormErrors {
    pub fn add(&mut self, name: &str, text: impl Into<String>) {
        self.0.entry(name.to_owned()).or_default().push(text.into());
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub fn answer(self) -> Answer {
        let value = serde_json::to_string(&self.0).unwrap_or_default();
        Answer::new(400, JSON, value)
    }

    pub fn check(self) -> Result<(), Answer> {
        if self.0.is_empty() { Ok(()) } else { Err(self.answer()) }
    }
}

/// Choices as MAAS lists them in a refusal.
pub(super) fn not_one_of(value: &str, what: &str, choices: &[&str]) -> String {
    let list: Vec<String> = choices.iter().map(|c| format!("'{c}'")).collect();
    format!("'{value}' is not a valid {what}.  It should be one of: {}.", list.join(", "))
}

pub(super) const REQUIRED: &str = "This field is required.";

pub(super) fn no_such_choice(value: &str) -> String {
    format!("Select a valid choice. {value} is not one of the available choices.")
}
