//! `millwright audit`: who asked for what, and what came of it.

use super::ClientOptions;
use super::connect::{call, connect};
use super::exit::CliError;
use super::output::{self, Column, Listed};
use super::text::{relative, rfc3339};
use clap::Args;
use proto::millwright::v1::{AuditEntry, ListAuditRequest};

/// An audit trail has no end; what is looked for is mostly near its head.
const LIMIT: u32 = 100;

#[derive(Args)]
#[command(after_help = "Examples:
  millwright audit                                     the last hundred, newest first
  millwright audit --filter 'actor=ann AND outcome=refused'
  millwright audit --filter 'target=m-1' --limit 5 -o wide
  millwright audit --filter 'call=\"baremetal.v1.RunService/StartRun\"'
  millwright audit --filter 'actor=\"\"'                 strangers: those who had no good token
  millwright audit --all -o json > trail.json

Filters: actor, token_id, call, target, outcome, code, reason, request_id. A call is known by its full name, as
-o wide shows it; the table shows its end. A stranger has no name: actor=\"\".")]
pub struct AuditArgs {
    /// Only what matches, e.g. \"actor=ci AND outcome=refused\"
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: String,
    /// Stop after this many [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// All there are
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub async fn execute(args: AuditArgs, options: &ClientOptions) -> Result<(), CliError> {
    let audit = connect(options).await?.audit;
    let limit = if args.all { None } else { Some(args.limit.unwrap_or(LIMIT)) };
    output::list(options.output, &args.filter, limit, async |page_size, page_token| {
        let request = ListAuditRequest { filter: args.filter.clone(), page_size, page_token };
        let page = call(audit.clone().list_audit(request)).await?;
        // a row is known by its number, which is no text
        Ok((page.entries.into_iter().map(Row::from).collect(), page.next_page_token))
    })
    .await
}

/// `StartRun` of `baremetal.v1.RunService/StartRun`.
fn short_call(call: &str) -> String {
    call.rsplit('/').next().unwrap_or(call).to_owned()
}

fn outcome(entry: &AuditEntry) -> String {
    match entry.count {
        0 | 1 => entry.outcome.clone(),
        n => format!("{n}× {}", entry.outcome),
    }
}

/// Why it was refused, or what came of it.
fn detail(entry: &AuditEntry) -> String {
    match (entry.reason.as_str(), entry.message.as_str()) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

fn who(entry: &AuditEntry) -> String {
    if entry.actor.is_empty() { "(stranger)".to_owned() } else { entry.actor.clone() }
}

/// An entry with its number as a text.
pub struct Row {
    entry: AuditEntry,
    number: String,
}

impl From<AuditEntry> for Row {
    fn from(entry: AuditEntry) -> Self {
        Self { number: entry.number.to_string(), entry }
    }
}

static COLUMNS: [Column<Row>; 13] = [
    Column::new("#", |r: &Row, _| r.number.clone()),
    Column::new("AT", |r: &Row, now| relative(r.entry.at.as_ref(), now)).narrow(),
    Column::new("AT", |r: &Row, _| rfc3339(r.entry.at.as_ref())).wide(),
    Column::new("ACTOR", |r: &Row, _| who(&r.entry)),
    Column::new("ROLE", |r: &Row, _| r.entry.role.clone()).wide(),
    Column::new("TOKEN", |r: &Row, _| r.entry.token_id.clone()).wide(),
    Column::new("CALL", |r: &Row, _| short_call(&r.entry.call)).narrow(),
    Column::new("CALL", |r: &Row, _| r.entry.call.clone()).wide(),
    Column::new("TARGET", |r: &Row, _| r.entry.target.clone()),
    Column::new("OUTCOME", |r: &Row, _| outcome(&r.entry)).state(),
    Column::new("REQUEST", |r: &Row, _| r.entry.request_id.clone()).wide(),
    Column::new("DETAIL", |r: &Row, _| detail(&r.entry)).flex().narrow(),
    Column::new("DETAIL", |r: &Row, _| detail(&r.entry)).wide(),
];

impl Listed for Row {
    type Message = AuditEntry;
    const PLURAL: &'static str = "entries";
    const PAGED: bool = true;

    fn columns() -> &'static [Column<Self>] {
        &COLUMNS
    }

    fn id(&self) -> &str {
        &self.number
    }

    fn message(&self) -> &AuditEntry {
        &self.entry
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::{Format, ListWriter, Screen};
    use super::*;

    fn entry() -> AuditEntry {
        AuditEntry {
            number: 7,
            call: "baremetal.v1.RunService/StartRun".to_owned(),
            target: "m-1".to_owned(),
            outcome: "refused".to_owned(),
            reason: "ACTIVE_RUN".to_owned(),
            message: "a run is active".to_owned(),
            count: 3,
            ..AuditEntry::default()
        }
    }

    fn written(format: Format) -> String {
        let mut out = Vec::new();
        let mut writer = ListWriter::new(&mut out, format, Screen::PLAIN);
        writer.page(&[Row::from(entry())], jiff::Timestamp::UNIX_EPOCH).expect("written");
        writer.finish("").expect("finished");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_refusal_tells_who_what_and_why() {
        let table = written(Format::Table);
        assert_eq!(
            table.lines().nth(1),
            Some("7  -   (stranger)  StartRun  m-1     3× refused  ACTIVE_RUN: a run is active")
        );
        assert_eq!(written(Format::Name), "7\n");
        let wide = written(Format::Wide);
        assert!(wide.contains("  baremetal.v1.RunService/StartRun  "), "filters want the full name: {wide}");
    }

    #[test]
    fn for_scripts_an_entry_is_the_message() {
        let json: serde_json::Value = serde_json::from_str(&written(Format::Json)).expect("JSON");
        assert_eq!(json["entries"][0]["call"], "baremetal.v1.RunService/StartRun");
    }
}
