//! List filters: `phase=IN_SERVICE AND labels.env=prod`. Parsed by AIP-160's grammar (OR binds tighter
//! than AND), then narrowed to what a list knows: equality over named fields.

use crate::error::{Error, Reason};
use crate::limits;
use aip_160::{Arg, Comparable, Comparator, Expression};

/// A field that a list can be filtered by.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    /// The words it can have, where the set is closed.
    pub words: Option<&'static [&'static str]>,
}

impl Field {
    pub const fn text(name: &'static str) -> Self {
        Self { name, words: None }
    }

    pub const fn one_of(name: &'static str, words: &'static [&'static str]) -> Self {
        Self { name, words: Some(words) }
    }
}

/// What a list can be filtered by.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    pub fields: &'static [Field],
    /// Whether `labels.KEY` is known.
    pub labels: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    Everything,
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Not(Box<Filter>),
    Is { field: &'static str, value: String },
    Label { key: String, value: String },
    HasLabel { key: String },
}

impl Schema {
    pub fn parse(&self, text: &str) -> Result<Filter, Error> {
        if text.len() > limits::FILTER_MAX {
            return Err(bad(format!("has {} bytes, at most {} are allowed", text.len(), limits::FILTER_MAX)));
        }
        if let Some(control) = text.chars().find(|c| c.is_control()) {
            return Err(bad(format!("contains the control character {control:?}")));
        }
        let parsed = aip_160::parse_filter(text).map_err(|e| bad(e.to_string()))?;
        let mut terms = 0;
        match &parsed.expression {
            Some(expression) => self.narrow(expression, &mut terms),
            None => Ok(Filter::Everything),
        }
    }

    fn narrow(&self, expression: &Expression, terms: &mut usize) -> Result<Filter, Error> {
        *terms += 1;
        if *terms > limits::FILTER_TERMS_MAX {
            return Err(bad(format!("has more than {} terms", limits::FILTER_TERMS_MAX)));
        }
        let mut all = |list: &[Expression]| list.iter().map(|e| self.narrow(e, terms)).collect::<Result<Vec<_>, _>>();
        match expression {
            Expression::And(list) => Ok(Filter::And(all(list)?)),
            Expression::Or(list) => Ok(Filter::Or(all(list)?)),
            Expression::Sequence(_) => Err(bad("terms must be joined by AND or OR".to_owned())),
            Expression::Not(inner) => Ok(Filter::Not(Box::new(self.narrow(inner, terms)?))),
            Expression::Global(what) => Err(bad(format!("{} is not a comparison; write FIELD=VALUE", show(what)))),
            Expression::Restriction(r) => self.restriction(&r.comparable, r.comparator, &r.arg),
        }
    }

    fn restriction(&self, left: &Comparable, comparator: Comparator, arg: &Arg) -> Result<Filter, Error> {
        let path = match left {
            Comparable::Member(m) => {
                let mut path = vec![m.value.as_str().to_owned()];
                path.extend(m.fields.iter().map(|f| f.as_str().to_owned()));
                path
            }
            Comparable::Function(f) => {
                return Err(bad(format!("functions such as {} are not supported", f.name.join("."))));
            }
        };
        let value = match arg {
            Arg::Comparable(Comparable::Member(m)) => {
                // an unquoted value with dots (an address, a version) arrives split
                let mut value = m.value.as_str().to_owned();
                for field in &m.fields {
                    value.push('.');
                    value.push_str(field.as_str());
                }
                value
            }
            Arg::Comparable(Comparable::Function(_)) | Arg::Composite(_) => {
                return Err(bad(format!("{}: compare with a value", path.join("."))));
            }
        };
        let (negate, has) = match comparator {
            Comparator::Equal => (false, false),
            Comparator::NotEqual => (true, false),
            Comparator::Has => (false, true),
            Comparator::GreaterThan
            | Comparator::GreaterThanOrEqual
            | Comparator::LessThan
            | Comparator::LessThanOrEqual => {
                return Err(bad(format!("{}: only = and != (and : for labels) are supported", path.join("."))));
            }
        };
        let test = if path[0] == "labels" && self.labels {
            label_test(&path[1..], value, has)?
        } else {
            self.field_test(&path.join("."), value, has)?
        };
        Ok(if negate { Filter::Not(Box::new(test)) } else { test })
    }

    fn field_test(&self, name: &str, value: String, has: bool) -> Result<Filter, Error> {
        let Some(field) = self.fields.iter().find(|f| f.name == name) else {
            let mut known: Vec<String> = self.fields.iter().map(|f| f.name.to_owned()).collect();
            if self.labels {
                known.push("labels.KEY".to_owned());
            }
            return Err(bad(format!("unknown field {name:?}; known are {}", known.join(", "))).allowing(known));
        };
        if has {
            return Err(bad(format!("{name}: ':' is for labels; use =")));
        }
        if let Some(words) = field.words
            && !words.contains(&value.as_str())
        {
            return Err(
                bad(format!("{name}: {value:?} is unknown; use one of {}", words.join(", "))).allowing(words.iter())
            );
        }
        Ok(Filter::Is { field: field.name, value })
    }
}

/// `labels.env=prod`, or with ':' `labels.env:prod`, `labels.env:*` and `labels:env` (the label exists).
fn label_test(path: &[String], value: String, has: bool) -> Result<Filter, Error> {
    match (path.is_empty(), has) {
        (true, true) => Ok(Filter::HasLabel { key: value }),
        (true, false) => Err(bad("labels: name a key, as in labels.env=prod".to_owned())),
        (false, true) if value == "*" => Ok(Filter::HasLabel { key: path.join(".") }),
        (false, _) => Ok(Filter::Label { key: path.join("."), value }),
    }
}

impl Filter {
    /// Evaluates the filter on one item, given its fields (labels as `labels.KEY`).
    pub fn matches(&self, get: &dyn Fn(&str) -> Option<String>) -> bool {
        match self {
            Filter::Everything => true,
            Filter::And(list) => list.iter().all(|f| f.matches(get)),
            Filter::Or(list) => list.iter().any(|f| f.matches(get)),
            Filter::Not(inner) => !inner.matches(get),
            Filter::Is { field, value } => get(field).as_deref() == Some(value),
            Filter::Label { key, value } => get(&format!("labels.{key}")).as_deref() == Some(value),
            Filter::HasLabel { key } => get(&format!("labels.{key}")).is_some(),
        }
    }

    /// The value that `field` must have for anything to match, if the filter pins it down.
    pub fn pins(&self, field: &str) -> Option<&str> {
        match self {
            Filter::Is { field: f, value } if *f == field => Some(value),
            Filter::And(list) => list.iter().find_map(|f| f.pins(field)),
            Filter::Everything
            | Filter::Or(_)
            | Filter::Not(_)
            | Filter::Is { .. }
            | Filter::Label { .. }
            | Filter::HasLabel { .. } => None,
        }
    }
}

fn bad(problem: String) -> Error {
    Error::new(Reason::InvalidFilter, format!("filter: {problem}")).with("field", "filter")
}

fn show(what: &Comparable) -> String {
    match what {
        Comparable::Member(m) => format!("{:?}", m.value.as_str()),
        Comparable::Function(f) => f.name.join("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: Schema =
        Schema { fields: &[Field::text("machine_id"), Field::one_of("phase", &["READY", "IN_SERVICE"])], labels: true };

    #[test]
    fn the_documents_examples_parse() {
        assert_eq!(SCHEMA.parse("machine_id=m-1"), Ok(Filter::Is { field: "machine_id", value: "m-1".into() }));
        assert_eq!(
            SCHEMA.parse("phase=IN_SERVICE AND labels.env=prod"),
            Ok(Filter::And(vec![
                Filter::Is { field: "phase", value: "IN_SERVICE".into() },
                Filter::Label { key: "env".into(), value: "prod".into() }
            ]))
        );
        assert_eq!(SCHEMA.parse(""), Ok(Filter::Everything));
        assert_eq!(
            SCHEMA.parse("labels.sim.latency_ms=0"),
            Ok(Filter::Label { key: "sim.latency_ms".into(), value: "0".into() })
        );
    }

    #[test]
    fn bad_filters_say_what_is_wrong() {
        for (text, part) in [
            ("phase=SLEEPING", "use one of READY, IN_SERVICE"),
            ("colour=red", "unknown field \"colour\""),
            ("phase", "not a comparison"),
            ("phase>READY", "only = and !="),
            ("phase=READY machine_id=a", "joined by AND or OR"),
            ("phase=(", "filter"),
            ("f(x)=1", "functions"),
        ] {
            let e = SCHEMA.parse(text).expect_err(text);
            assert_eq!(e.reason, Reason::InvalidFilter);
            assert!(e.message.contains(part), "{text}: {}", e.message);
        }
        assert!(SCHEMA.parse(&vec!["phase=READY"; 40].join(" OR ")).is_err(), "too many terms");
        assert!(SCHEMA.parse(&"(".repeat(1000)).is_err(), "too deep");
    }

    #[test]
    fn or_binds_tighter_than_and_and_both_evaluate() {
        let f = SCHEMA.parse("phase=READY AND machine_id=a OR machine_id=b").expect("parses");
        let item = |phase: &'static str, id: &'static str| {
            move |name: &str| match name {
                "phase" => Some(phase.to_owned()),
                "machine_id" => Some(id.to_owned()),
                _ => None,
            }
        };
        assert!(f.matches(&item("READY", "b")));
        assert!(!f.matches(&item("IN_SERVICE", "b")));
        assert_eq!(f.pins("phase"), Some("READY"));
        assert_eq!(f.pins("machine_id"), None);
    }
}
