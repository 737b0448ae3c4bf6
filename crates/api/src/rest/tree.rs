//! Paths to targets: one step down a tree for each segment, literals before variables.

use http::Method;
use std::collections::HashMap;

/// A part of a path template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Literal(String),
    /// The field that the segment holds, with dots between.
    Variable(String),
}

/// Literals (a verb such as `runs:watch` is part of one) and `{field}`, each a whole segment.
pub(crate) fn parse(template: &str) -> Result<Vec<Segment>, String> {
    let wrong = |problem: &str| format!("the path template {template:?} {problem}");
    let path = template.strip_prefix('/').ok_or_else(|| wrong("does not begin with a slash"))?;
    let segment = |text: &str| match text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        Some(name) if !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c)) => {
            Ok(Segment::Variable(name.to_owned()))
        }
        Some(_) => Err(wrong("has a variable that is no field's name")),
        None if text.is_empty() => Err(wrong("has an empty segment")),
        None if text.chars().all(|c| c.is_ascii_alphanumeric() || "._:-".contains(c)) => {
            Ok(Segment::Literal(text.to_owned()))
        }
        None => Err(wrong("has a segment that is neither a literal nor one variable")),
    };
    path.split('/').map(segment).collect()
}

pub(crate) struct Tree<T> {
    literals: HashMap<String, Tree<T>>,
    variable: Option<Box<Tree<T>>>,
    here: Vec<(Method, T)>,
}

/// What stands at a path.
pub(crate) enum Found<'a, T> {
    /// With the segments that stand for variables.
    Target(&'a T, Vec<&'a str>),
    /// Something, but not for this method.
    Others(Vec<Method>),
    Nothing,
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Self { literals: HashMap::new(), variable: None, here: Vec::new() }
    }
}

impl<T> Tree<T> {
    pub fn insert(&mut self, method: Method, path: &[Segment], target: T) -> Result<(), String> {
        match path {
            [] if self.here.iter().any(|(m, _)| *m == method) => Err(format!("two calls have one path with {method}")),
            [] => {
                self.here.push((method, target));
                Ok(())
            }
            [Segment::Literal(text), rest @ ..] => {
                self.literals.entry(text.clone()).or_default().insert(method, rest, target)
            }
            [Segment::Variable(_), rest @ ..] => {
                self.variable.get_or_insert_with(Box::default).insert(method, rest, target)
            }
        }
    }

    pub fn find<'a>(&'a self, method: &Method, path: &'a [String]) -> Found<'a, T> {
        let mut ends = Vec::new();
        self.ends(path, &mut Vec::new(), &mut ends);
        for (node, captured) in &mut ends {
            if let Some((_, target)) = node.here.iter().find(|(m, _)| m == method) {
                return Found::Target(target, std::mem::take(captured));
            }
        }
        let mut others: Vec<Method> = Vec::new();
        for (m, _) in ends.iter().flat_map(|(node, _)| &node.here) {
            if !others.contains(m) {
                others.push(m.clone());
            }
        }
        others.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        if others.is_empty() { Found::Nothing } else { Found::Others(others) }
    }

    /// Every node that the path leads to, the one with most literals first.
    fn ends<'a>(
        &'a self,
        path: &'a [String],
        captured: &mut Vec<&'a str>,
        found: &mut Vec<(&'a Tree<T>, Vec<&'a str>)>,
    ) {
        let Some((first, rest)) = path.split_first() else {
            found.push((self, captured.clone()));
            return;
        };
        if let Some(next) = self.literals.get(first) {
            next.ends(rest, captured, found);
        }
        if let Some(next) = self.variable.as_ref().filter(|_| !first.is_empty()) {
            captured.push(first);
            next.ends(rest, captured, found);
            captured.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree<&'static str> {
        let mut tree = Tree::default();
        for (method, template, name) in [
            (Method::GET, "/v1/runs", "list"),
            (Method::POST, "/v1/runs", "start"),
            (Method::GET, "/v1/runs:watch", "watch"),
            (Method::GET, "/v1/runs/{run_id}", "get"),
            (Method::POST, "/v1/runs/{run_id}/cancel", "cancel"),
            (Method::POST, "/v1/runs/special", "special"),
        ] {
            tree.insert(method, &parse(template).expect("parses"), name).expect("fits");
        }
        tree
    }

    fn at(method: Method, path: &str) -> String {
        let path: Vec<String> = path.split('/').map(str::to_owned).collect();
        match tree().find(&method, &path) {
            Found::Target(name, captured) => format!("{name} {captured:?}"),
            Found::Others(methods) => format!("{methods:?}"),
            Found::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn literals_come_before_variables_and_methods_decide() {
        assert_eq!(at(Method::GET, "v1/runs"), "list []");
        assert_eq!(at(Method::GET, "v1/runs:watch"), "watch []");
        assert_eq!(at(Method::GET, "v1/runs/r-1"), "get [\"r-1\"]");
        assert_eq!(at(Method::POST, "v1/runs/special"), "special []");
        assert_eq!(at(Method::GET, "v1/runs/special"), "get [\"special\"]");
        assert_eq!(at(Method::DELETE, "v1/runs/special"), "[GET, POST]");
        assert_eq!(at(Method::PUT, "v1/runs"), "[GET, POST]");
        for path in ["v1", "v1/runs/", "v1/runs/r-1/", "v1/runs//cancel", "v1/RUNS", "", "v1/runs/r-1/cancel/x"] {
            assert_eq!(at(Method::GET, path), "nothing", "{path}");
        }
    }

    #[test]
    fn templates_that_we_do_not_speak_are_refused() {
        for template in ["runs", "/v1//runs", "/v1/", "/v1/{}", "/v1/{a=b/*}", "/v1/*", "/v1/{id}:cancel", "/v1/{a b}"]
        {
            assert!(parse(template).is_err(), "{template}");
        }
        let mut tree = tree();
        assert!(tree.insert(Method::GET, &parse("/v1/runs/{other}").expect("parses"), "again").is_err());
    }
}
