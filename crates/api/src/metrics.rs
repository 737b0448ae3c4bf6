//! `/metrics`: what the catalogue lists, collected by one recorder for the whole process and shown to
//! Prometheus. Any token for the whole fleet may read them; without one only where the configuration says
//! that they are public.

use crate::gate::authenticate;
use crate::server::ServerOptions;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use domain::metric::{self, Kind};
use domain::{Code, Timestamp};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use service::Service;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Writes down everything that was measured.
pub type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// How often observations are folded into their histograms when nobody reads them.
const FOLD_EVERY: Duration = Duration::from_secs(5);

static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// Begins to collect, and answers how to show it. There is one recorder in a process: asking again gives the
/// same. Must be called within a runtime, and before anything is measured.
pub fn collect_metrics(now: Timestamp) -> Result<Render, String> {
    let handle = match RECORDER.get() {
        Some(handle) => handle.clone(),
        None => {
            let handle = recorder().map_err(|e| format!("starting the metrics: {e}"))?;
            describe(now);
            RECORDER.get_or_init(|| handle).clone()
        }
    };
    let folding = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(FOLD_EVERY).await;
            folding.run_upkeep();
        }
    });
    Ok(Arc::new(move || handle.render()))
}

fn recorder() -> Result<PrometheusHandle, metrics_exporter_prometheus::BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in metric::ALL {
        if let Kind::Histogram(bounds) = metric.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)?;
        }
    }
    builder.install_recorder()
}

/// Says what each metric is, and makes what has not happened yet visible as zero.
fn describe(now: Timestamp) {
    for metric in metric::ALL {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Kind::Histogram(_) => metrics::describe_histogram!(metric.name, metric.help),
        }
    }
    Service::tell_zeros();
    metrics::gauge!(metric::BUILD_INFO.name, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    metrics::gauge!(metric::START_TIME.name).set(now.micros() as f64 / 1e6);
}

#[derive(Clone)]
struct Page {
    service: Service,
    render: Option<Render>,
    public: bool,
}

pub(crate) fn route(service: &Service, options: &ServerOptions) -> Router {
    let page = Page { service: service.clone(), render: options.metrics.clone(), public: options.metrics_public };
    Router::new().route("/metrics", get(show)).with_state(page)
}

async fn show(State(page): State<Page>, headers: HeaderMap) -> Response {
    if !page.public {
        let caller = authenticate(&page.service, &headers, "/metrics").await;
        // numbers of the whole fleet are not for one customer
        let caller = caller.and_then(|by| if by.customer_id.is_empty() { Ok(()) } else { Err(not_for_customers()) });
        let known = || {
            let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
            page.service.access().was_of_the_fleet(value)
        };
        // that the database is away is what the page has to tell
        if let Err(e) = caller.or_else(|e| if e.code() == Code::Unavailable && known() { Ok(()) } else { Err(e) }) {
            let status = match e.code() {
                Code::Unauthenticated => StatusCode::UNAUTHORIZED,
                Code::PermissionDenied => StatusCode::FORBIDDEN,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            return (status, [(header::WWW_AUTHENTICATE, "Bearer")], format!("{e}\n")).into_response();
        }
    }
    let Some(render) = page.render else {
        return (StatusCode::NOT_FOUND, "this server collects no metrics\n").into_response();
    };
    page.service.tell().await;
    tell_process();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], render()).into_response()
}

fn not_for_customers() -> domain::Error {
    domain::Error::new(domain::Reason::OutOfScope, "metrics are about the whole fleet; the token is of one customer")
}

/// What the kernel says of this process, where it has a place to say it.
fn tell_process() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    if let Some(kib) = resident.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok()) {
        metrics::gauge!(metric::MEMORY.name).set(kib * 1024.0);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        metrics::gauge!(metric::FILES_OPEN.name).set(open.count() as f64);
    }
}
