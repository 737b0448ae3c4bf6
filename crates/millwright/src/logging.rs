//! Log lines on stderr, for people or as JSON, and traces to a collector where one is configured. Every
//! line carries the ids of the request or the run that it was written for.

use crate::config::{Log, Telemetry};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::{Map, Value};
use std::fmt;
use std::io::IsTerminal as _;
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry};

/// One batch of spans is given up after this.
const EXPORT_WITHIN: Duration = Duration::from_secs(5);
/// At the end, what is left is sent within this, or dropped.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

type BoxedLayer = Box<dyn tracing_subscriber::Layer<Registry> + Send + Sync>;

/// What is written, by the key `log.level`. A word that is no level is a target to the filter, and one that
/// nothing is ever written for: a slip of the pen would silence everything.
pub fn filter(text: &str) -> Result<EnvFilter, String> {
    for directive in text.split(',') {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        let known = LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level));
        if !known || directive.starts_with(char::is_whitespace) {
            return Err(format!(
                "log.level: {directive:?} is not a level; use {}, or TARGET=LEVEL such as info,millwright_engine=debug",
                LEVELS.join(", ")
            ));
        }
    }
    EnvFilter::try_new(text).map_err(|e| format!("log.level: {text:?}: {e}"))
}

/// Holds what must be flushed at the end.
pub struct Logging {
    traces: Option<SdkTracerProvider>,
}

impl Logging {
    pub fn start(log: &Log, telemetry: &Telemetry) -> Result<Self, String> {
        let filter = filter(&log.level)?;
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let lines: BoxedLayer = if log.json {
            lines.event_format(FlatJson).fmt_fields(JsonFields::new()).with_filter(filter).boxed()
        } else {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(colour).fmt_fields(Plain).with_filter(filter).boxed()
        };
        let mut layers = vec![lines];
        let traces = match telemetry.otlp_endpoint.as_str() {
            "" => None,
            endpoint => {
                let provider = provider(endpoint).map_err(|e| format!("telemetry.otlp_endpoint {endpoint:?}: {e}"))?;
                opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
                // our own spans only: those of the exporter's transport would never end
                let ours = Targets::new().with_target("millwright", LevelFilter::INFO);
                let layer = tracing_opentelemetry::layer()
                    .with_tracer(provider.tracer("millwright"))
                    .with_location(false)
                    .with_threads(false);
                layers.push(layer.with_filter(ours).boxed());
                Some(provider)
            }
        };
        tracing_subscriber::registry().with(layers).try_init().map_err(|e| format!("starting the log: {e}"))?;
        Ok(Self { traces })
    }

    /// Sends what is left, within a bound.
    pub async fn finish(self) {
        if let Some(provider) = self.traces {
            let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_WITHIN)).await;
            if let Ok(Err(e)) = ended {
                tracing::warn!(error = %e, "some traces were not sent");
            }
        }
    }
}

/// Within a runtime: the connection is made when there is something to send.
fn provider(endpoint: &str) -> Result<SdkTracerProvider, opentelemetry_otlp::ExporterBuildError> {
    let mut builder = SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_WITHIN);
    if endpoint.starts_with("https://") {
        // whom this host trusts
        builder = builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
    }
    let exporter = builder.build()?;
    let resource = opentelemetry_sdk::Resource::builder()
        .with_service_name("millwright")
        .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// Fields that only the collector is meant to see.
fn is_hidden(name: &str) -> bool {
    name.starts_with("otel.")
}

/// Fields for people: `name=value`, and the message bare.
struct Plain;

impl<'w> FormatFields<'w> for Plain {
    fn format_fields<R: tracing_subscriber::field::RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut plain = PlainVisitor { writer, first: true, result: Ok(()) };
        fields.record(&mut plain);
        plain.result
    }
}

struct PlainVisitor<'w> {
    writer: Writer<'w>,
    first: bool,
    result: fmt::Result,
}

impl Visit for PlainVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_err() || is_hidden(field.name()) {
            return;
        }
        let space = if std::mem::replace(&mut self.first, false) { "" } else { " " };
        self.result = match field.name() {
            "message" => write!(self.writer, "{space}{value:?}"),
            name => write!(self.writer, "{space}{name}={value:?}"),
        };
    }
}

/// One flat object for each line: what it says, and the fields of all the spans around it.
struct FlatJson;

impl<S, N> FormatEvent<S, N> for FlatJson
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, cx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = Map::new();
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        line.insert("timestamp".into(), time.into());
        line.insert("level".into(), event.metadata().level().as_str().into());
        line.insert("target".into(), event.metadata().target().into());
        for span in cx.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>();
            if let Some(Ok(Value::Object(fields))) = fields.map(|f| serde_json::from_str(&f.fields)) {
                line.extend(fields.into_iter().filter(|(name, _)| !is_hidden(name)));
            }
        }
        // what the line itself says goes over what is around it
        event.record(&mut JsonVisitor(&mut line));
        writeln!(writer, "{}", Value::Object(line))
    }
}

struct JsonVisitor<'a>(&'a mut Map<String, Value>);

impl JsonVisitor<'_> {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        if !is_hidden(field.name()) {
            self.0.insert(field.name().to_owned(), value.into());
        }
    }
}

impl Visit for JsonVisitor<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_level_is_refused_by_name() {
        for good in ["info", "INFO", "off", "info,millwright_engine=debug", "warn,[run{run_id=x}]=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["", "loud", "info,loud", "millwright_engine", "millwright_engine=loud", "info, debug", "info,"] {
            let told = filter(bad).map(|_| ()).expect_err(bad);
            assert!(told.contains("log.level") && told.contains("trace"), "{told}");
        }
    }
}
