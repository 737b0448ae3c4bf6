//! Log lines on standard error, where the service manager takes them: one line for each event, nothing else. A whole
//! logging library would be a good part of what an idle agent takes.

use std::io::Write as _;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// What is written beside warnings: `MILLWRIGHT_AGENT_LOG=debug`, or `error`, `warn`, `info`.
const LEVEL: &str = "MILLWRIGHT_AGENT_LOG";

struct Lines {
    most: Level,
}

/// For the whole process. The libraries' own events are not written: they may hold what they send.
pub fn start() {
    let most = std::env::var(LEVEL).ok().and_then(|text| text.parse().ok()).unwrap_or(Level::INFO);
    // only the first counts, and there is one
    drop(tracing::subscriber::set_global_default(Lines { most }));
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.level() <= &self.most && metadata.target().starts_with("agent")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = event.metadata().level().as_str();
        drop(writeln!(std::io::stderr().lock(), "{level:<5} {}{}", line.message, line.fields));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // a line is a line, whatever a server or a file name has in it
        let text = format!("{value:?}").replace(['\n', '\r'], " ");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.fields.push_str(&format!(" {}={text}", field.name()));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{}", value.escape_debug()));
    }
}
