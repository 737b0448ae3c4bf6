//! A list filter as a WHERE clause: fields become columns from a fixed list, values become parameters.

use crate::db::Val;
use domain::filter::Filter;

/// Builds the clause; `column` maps a field of the schema to its column, `labels` says whose labels.
pub(crate) struct Where {
    pub sql: String,
    pub params: Vec<Val>,
}

impl Where {
    pub fn new(first: Vec<Val>) -> Self {
        Self { sql: String::new(), params: first }
    }

    /// For lists of ids with the newest first: `$1` is the id to go on before; empty: from the newest.
    pub fn before(id: &str) -> Self {
        // '~' sorts behind every id
        Self::new(vec![Val::from(if id.is_empty() { "~" } else { id })])
    }

    fn param(&mut self, value: impl Into<Val>) -> String {
        self.params.push(value.into());
        format!("${}", self.params.len())
    }

    /// Appends ` AND …` for the filter.
    pub fn and(&mut self, filter: &Filter, column: &dyn Fn(&str) -> &'static str) {
        if *filter != Filter::Everything {
            let sql = self.clause(filter, column);
            self.sql.push_str(" AND ");
            self.sql.push_str(&sql);
        }
    }

    fn clause(&mut self, filter: &Filter, column: &dyn Fn(&str) -> &'static str) -> String {
        match filter {
            Filter::Everything => "1 = 1".to_owned(),
            Filter::And(list) => self.joined(list, " AND ", column),
            Filter::Or(list) => self.joined(list, " OR ", column),
            Filter::Not(inner) => format!("NOT {}", self.clause(inner, column)),
            Filter::Is { field, value } => {
                let p = self.param(value.as_str());
                format!("({} = {p})", column(field))
            }
            Filter::Ordered { field, order, value } => {
                let (p, column) = (self.param(*value), column(field));
                // never unknown: NOT of it means all the others
                format!("({column} IS NOT NULL AND {column} {} {p})", order.sign())
            }
            Filter::Label { key, value } => {
                let (k, v) = (self.param(key.as_str()), self.param(value.as_str()));
                format!(
                    "m.machine_id IN (SELECT l.machine_id FROM machine_labels l WHERE l.label_key = {k} AND l.label_value = {v})"
                )
            }
            Filter::HasLabel { key } => {
                let k = self.param(key.as_str());
                format!("m.machine_id IN (SELECT l.machine_id FROM machine_labels l WHERE l.label_key = {k})")
            }
        }
    }

    fn joined(&mut self, list: &[Filter], with: &str, column: &dyn Fn(&str) -> &'static str) -> String {
        let parts: Vec<String> = list.iter().map(|f| self.clause(f, column)).collect();
        format!("({})", parts.join(with))
    }
}
