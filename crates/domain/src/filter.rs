//! List filters: `phase=IN_SERVICE AND labels.env=prod`. Parsed by AIP-160's grammar (OR binds tighter
//! than AND), then narrowed to what a list knows: equality over named fields, and order where a field is a number or a
//! point in time.

use crate::error::{Error, Reason};
use crate::limits;
use crate::mac::MacAddress;
use crate::time::Timestamp;
use aip_160::{Arg, Comparable, Comparator, Expression};

/// A field that a list can be filtered by.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    holds: Holds,
}

/// What a field holds, and so how a value is spelt and compared.
#[derive(Clone, Copy, Debug)]
enum Holds {
    Text,
    /// One of these words.
    Words(&'static [&'static str]),
    /// In any of the usual spellings.
    Mac,
    /// Kept in lower case, given in any.
    LowerCase,
    Number,
    /// RFC 3339, compared as microseconds since the epoch.
    Time,
}

impl Field {
    pub const fn text(name: &'static str) -> Self {
        Self { name, holds: Holds::Text }
    }

    pub const fn one_of(name: &'static str, words: &'static [&'static str]) -> Self {
        Self { name, holds: Holds::Words(words) }
    }

    pub const fn mac(name: &'static str) -> Self {
        Self { name, holds: Holds::Mac }
    }

    pub const fn lower_case(name: &'static str) -> Self {
        Self { name, holds: Holds::LowerCase }
    }

    pub const fn number(name: &'static str) -> Self {
        Self { name, holds: Holds::Number }
    }

    pub const fn time(name: &'static str) -> Self {
        Self { name, holds: Holds::Time }
    }

    /// A value that it could have, quoted where it must be.
    pub const fn example(&self) -> &'static str {
        match self.holds {
            Holds::Text | Holds::LowerCase => "x",
            Holds::Words([first, ..]) => first,
            Holds::Words([]) => "",
            Holds::Mac => "\"52:54:00:4d:59:01\"",
            Holds::Number => "1",
            Holds::Time => "\"2026-01-29T15:10:00Z\"",
        }
    }

    /// The test that a comparison stands for.
    fn test(&self, comparator: Comparator, value: String) -> Result<Filter, Error> {
        let (field, name) = (self.name, self.name);
        let number = match self.holds {
            Holds::Number => Some(value.parse::<i64>().map_err(|_| bad(format!("{name}: {value:?} is no number")))?),
            Holds::Time => {
                let wanted = "a time like \"2026-01-29T15:10:00Z\", in quotes";
                let at = Timestamp::parse(&value).ok_or_else(|| bad(format!("{name}: {value:?} is not {wanted}")))?;
                Some(at.micros())
            }
            Holds::Text | Holds::Words(_) | Holds::Mac | Holds::LowerCase => None,
        };
        if let Some(value) = number {
            let order = match comparator {
                Comparator::Equal | Comparator::NotEqual | Comparator::Has => Order::Equal,
                Comparator::GreaterThan => Order::Above,
                Comparator::GreaterThanOrEqual => Order::AtLeast,
                Comparator::LessThan => Order::Below,
                Comparator::LessThanOrEqual => Order::AtMost,
            };
            return Ok(Filter::Ordered { field, order, value });
        }
        if !matches!(comparator, Comparator::Equal | Comparator::NotEqual) {
            return Err(bad(format!("{name}: only = and != (and : for labels) are supported")));
        }
        let value = match self.holds {
            Holds::Words(words) if !words.contains(&value.as_str()) => {
                return Err(bad(format!("{name}: {value:?} is unknown; use one of {}", words.join(", ")))
                    .allowing(words.iter()));
            }
            Holds::Mac => MacAddress::parse(&value)
                .map(|mac| mac.to_string())
                .ok_or_else(|| bad(format!("{name}: {value:?} is not a MAC address like \"aa:bb:cc:dd:ee:ff\"")))?,
            Holds::LowerCase => value.to_ascii_lowercase(),
            Holds::Text | Holds::Words(_) | Holds::Number | Holds::Time => value,
        };
        Ok(Filter::Is { field, value })
    }
}

/// How numbers and times compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Equal,
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Order {
    pub const fn sign(self) -> &'static str {
        match self {
            Order::Equal => "=",
            Order::Above => ">",
            Order::AtLeast => ">=",
            Order::Below => "<",
            Order::AtMost => "<=",
        }
    }

    fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Order::Equal => left == right,
            Order::Above => left > right,
            Order::AtLeast => left >= right,
            Order::Below => left < right,
            Order::AtMost => left <= right,
        }
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
    Is {
        field: &'static str,
        value: String,
    },
    /// What has no such value is none of them.
    Ordered {
        field: &'static str,
        order: Order,
        value: i64,
    },
    Label {
        key: String,
        value: String,
    },
    HasLabel {
        key: String,
    },
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
        let test = if path[0] == "labels" && self.labels {
            let has = match comparator {
                Comparator::Equal | Comparator::NotEqual => false,
                Comparator::Has => true,
                Comparator::GreaterThan
                | Comparator::GreaterThanOrEqual
                | Comparator::LessThan
                | Comparator::LessThanOrEqual => {
                    return Err(bad(format!("{}: only = and != (and : for labels) are supported", path.join("."))));
                }
            };
            label_test(&path[1..], value, has)?
        } else {
            self.field_test(&path.join("."), value, comparator)?
        };
        let negate = comparator == Comparator::NotEqual;
        Ok(if negate { Filter::Not(Box::new(test)) } else { test })
    }

    fn field_test(&self, name: &str, value: String, comparator: Comparator) -> Result<Filter, Error> {
        let Some(field) = self.fields.iter().find(|f| f.name == name) else {
            let mut known: Vec<String> = self.fields.iter().map(|f| f.name.to_owned()).collect();
            if self.labels {
                known.push("labels.KEY".to_owned());
            }
            return Err(bad(format!("unknown field {name:?}; known are {}", known.join(", "))).allowing(known));
        };
        if comparator == Comparator::Has {
            return Err(bad(format!("{name}: ':' is for labels; use =")));
        }
        field.test(comparator, value)
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
            Filter::Ordered { field, order, value } => {
                get(field).and_then(|has| has.parse().ok()).is_some_and(|has| order.holds(has, *value))
            }
            Filter::Label { key, value } => get(&format!("labels.{key}")).as_deref() == Some(value),
            Filter::HasLabel { key } => get(&format!("labels.{key}")).is_some(),
        }
    }

    /// Whether `field` is named anywhere in it.
    pub fn speaks_of(&self, field: &str) -> bool {
        match self {
            Filter::Everything | Filter::Label { .. } | Filter::HasLabel { .. } => false,
            Filter::And(list) | Filter::Or(list) => list.iter().any(|f| f.speaks_of(field)),
            Filter::Not(inner) => inner.speaks_of(field),
            Filter::Is { field: f, .. } | Filter::Ordered { field: f, .. } => *f == field,
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
            | Filter::Ordered { .. }
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
    fn values_are_spelt_as_they_are_kept_and_numbers_and_times_have_an_order() {
        const NODES: Schema = Schema {
            fields: &[
                Field::mac("mac_address"),
                Field::lower_case("system_uuid"),
                Field::number("install_attempts"),
                Field::time("state_changed_at"),
            ],
            labels: false,
        };
        let is = |field, value: &str| Ok(Filter::Is { field, value: value.into() });
        for mac in ["\"52:54:00:4D:59:01\"", "52-54-00-4d-59-01", "5254.004d.5901", "5254004D5901"] {
            assert_eq!(NODES.parse(&format!("mac_address={mac}")), is("mac_address", "52:54:00:4d:59:01"), "{mac}");
        }
        assert_eq!(NODES.parse("system_uuid=4D57"), is("system_uuid", "4d57"));
        let ordered = |field, order, value| Ok(Filter::Ordered { field, order, value });
        assert_eq!(NODES.parse("install_attempts=2"), ordered("install_attempts", Order::Equal, 2));
        assert_eq!(NODES.parse("install_attempts >= 2"), ordered("install_attempts", Order::AtLeast, 2));
        assert_eq!(
            NODES.parse("state_changed_at<\"1970-01-01T00:00:01Z\""),
            ordered("state_changed_at", Order::Below, 1_000_000)
        );
        for (text, part) in [
            ("install_attempts=two", "is no number"),
            ("state_changed_at>yesterday", "is not a time"),
            ("mac_address=card", "is not a MAC address"),
            ("mac_address>5254004d5901", "only = and !="),
            ("install_attempts:2", "':' is for labels"),
        ] {
            let e = NODES.parse(text).expect_err(text);
            assert!(e.message.contains(part), "{text}: {}", e.message);
        }
        let item = |attempts: Option<&'static str>| move |_: &str| attempts.map(str::to_owned);
        for (text, three, none) in [
            ("install_attempts=3", true, false),
            ("install_attempts!=3", false, true),
            ("install_attempts>2", true, false),
            ("install_attempts<=3", true, false),
            ("install_attempts<3", false, false),
        ] {
            let f = NODES.parse(text).expect("parses");
            assert_eq!((f.matches(&item(Some("3"))), f.matches(&item(None))), (three, none), "{text}");
        }
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
