//! The machines' door: boot scripts, orders, seeds and reports over plain HTTP. On the main port, and on the one that
//! machines on a provisioning network reach. Reports carry the token of their attempt; nothing else here needs one.

use crate::script::{self, POLLS_MAX, Places, TRIES_MAX, Wanted};
use api::json::Strict;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use domain::boot_decision::{Serve, Setup, decide};
use domain::boot_node::Claims;
use domain::boot_workflow::{BootWorkflow, is_url};
use domain::install_order::{InstallOrder, OrderTask};
use domain::install_report::Said;
use domain::{Error, MacAddress, Reason, Secret, metric};
use serde::Deserialize;
use service::{BootRequest, BootSetup, Booting, Ordered, Report, Reported, Service};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Of a report.
const BODY_MAX: usize = 256 * 1024;

/// Whom an address was leased to, where our own DHCP serves the network.
pub trait Leases: Send + Sync {
    /// `None`: we did not lease that address.
    fn leased_to(&self, address: Ipv4Addr) -> Option<MacAddress>;
}

pub struct Door {
    pub service: Service,
    pub setup: BootSetup,
    pub places: Places,
    /// Where our DHCP is the only one: an installer goes to whom the address was leased to, and to nobody else.
    pub leases: Option<Arc<dyn Leases>>,
}

/// Where a request came from, as the port that took it says.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

pub fn router(door: Arc<Door>) -> Router {
    Router::new()
        .route("/boot.ipxe", get(first))
        .route("/api/v1/boot", get(boot))
        .route("/api/v1/boot/order", get(order))
        .route("/api/v1/boot/seed/{file}", get(seed))
        .route("/api/v1/boot/answers", get(answers))
        .route("/api/v1/report", post(report))
        .route("/api/v1/nodes/{id}/installation-status", post(status))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(door)
}

fn text(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// The parameters of a query; a plus is a plus: iPXE does not spell a space so.
fn query(raw: Option<&str>) -> Vec<(String, String)> {
    let pairs = raw.unwrap_or_default().split('&').take(32).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), unescaped(value))
        })
        .collect()
}

fn unescaped(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let escaped = (first == b'%').then(|| more.get(..2)).flatten();
        let digits = escaped.filter(|d| d.iter().all(u8::is_ascii_hexdigit)).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        match byte {
            Some(byte) => {
                bytes.push(byte);
                rest = more.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn value<'a>(query: &'a [(String, String)], name: &str) -> &'a str {
    query.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v.as_str())
}

fn count(query: &[(String, String)], name: &str, max: u32) -> u32 {
    value(query, name).parse().unwrap_or(0).min(max)
}

/// By what iPXE calls its platform. Of one that is not known nothing is said.
fn boot_mode(platform: &str) -> &'static str {
    match platform {
        "pcbios" => "bios",
        "efi" => "uefi",
        _ => "",
    }
}

fn token(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

fn served(what: &'static str) {
    metrics::counter!(metric::BOOT_DECISIONS.name, "served" => what).increment(1);
}

fn reported(said: Option<Said>, outcome: &'static str) {
    let said = said.map_or("facts", Said::as_str);
    metrics::counter!(metric::BOOT_REPORTS.name, "said" => said, "outcome" => outcome).increment(1);
}

fn refused(e: Error) -> Response {
    api::rest_error(e)
}

async fn first(State(door): State<Arc<Door>>, RawQuery(raw): RawQuery) -> Response {
    text(StatusCode::OK, script::first(&door.places, count(&query(raw.as_deref()), "tries", TRIES_MAX)))
}

/// The only thing that discovers.
async fn boot(State(door): State<Arc<Door>>, RawQuery(raw): RawQuery, request: Request) -> Response {
    let query = query(raw.as_deref());
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let ip = match peer {
        Some(IpAddr::V4(ip)) => ip.to_string(),
        Some(IpAddr::V6(ip)) => ip.to_string(),
        None => String::new(),
    };
    let claims = Claims {
        hostname: value(&query, "hostname").to_owned(),
        ip_address: ip,
        vendor: value(&query, "vendor").to_owned(),
        model: value(&query, "product").to_owned(),
        serial_number: value(&query, "serial").to_owned(),
        system_uuid: value(&query, "uuid").to_owned(),
        arch: value(&query, "arch").to_owned(),
        boot_mode: boot_mode(value(&query, "platform")).to_owned(),
    };
    let mac = value(&query, "mac").to_owned();
    let foreign = !door.was_leased(peer, &mac);
    let asks = BootRequest { mac, claims, foreign };
    let polls = count(&query, "polls", POLLS_MAX);
    match door.decide(&asks).await {
        Ok((booting, image)) => {
            let (serve, workflow) = (&booting.serve, booting.workflow.as_ref().map(|workflow| (workflow, &image)));
            let (what, is_news) = match serve {
                Serve::LocalDisk { .. } => ("disk", false),
                Serve::Discover => ("discover", true),
                Serve::Installer { .. } => ("installer", true),
                Serve::Wait { .. } | Serve::AttemptLost => ("wait", false),
                Serve::Error { .. } => ("error", true),
            };
            served(what);
            // a fleet that boots from its disks, or waits and asks again, would bury what happens to the others
            if is_news {
                tracing::info!(node = %booting.node.id, mac = %booting.node.mac, ?serve, "a machine boots");
            } else {
                tracing::debug!(node = %booting.node.id, mac = %booting.node.mac, ?serve, "a machine boots");
            }
            let token = booting.token.as_ref().map(Secret::reveal);
            text(StatusCode::OK, script::script(&door.places, &booting.node, serve, workflow, token, polls))
        }
        Err(e) if e.reason == Reason::InvalidField => {
            served("refused");
            refused(e)
        }
        // iPXE shows no body of an error: whoever stands at the console would see nothing
        Err(e) if e.code() == domain::Code::Unavailable => {
            served("wait");
            tracing::warn!(mac = asks.mac, error = %e, "a machine waits, since it cannot be decided now what it boots");
            text(StatusCode::OK, script::undecided(&door.places, &e.message, count(&query, "tries", TRIES_MAX)))
        }
        Err(e) => {
            served("disk");
            tracing::warn!(mac = asks.mac, error = %e, "a machine boots from its disk, since it could not be decided otherwise");
            text(StatusCode::OK, script::disk(&e.message))
        }
    }
}

impl Door {
    /// What a machine boots, and the image that is written. A look at a stranger needs our own installer: where that is
    /// not there it is not tried, for a script that loads nothing would ask for ever.
    async fn decide(&self, asks: &BootRequest) -> Result<(Booting, Wanted), Error> {
        let booting = self.service.boot(asks, &self.setup).await?;
        match (&booting.serve, booting.node.open_order()) {
            (Serve::Discover, _) if self.has_installer().await? => {
                self.service.look_offered(&booting.node.id).await?;
                Ok((booting, Wanted::default()))
            }
            (Serve::Discover, _) => {
                tracing::warn!(node = %booting.node.id, mac = %booting.node.mac, "a machine is not looked at: there is no installer; 'millwright image build-installer' makes one");
                let serve = decide(&booting.node, None, Setup { can_discover: false, ..self.setup.serves });
                Ok((Booting { serve, ..booting }, Wanted::default()))
            }
            (Serve::Installer { .. }, Some(order)) => match self.image_of(order, booting.workflow.as_ref()).await {
                Ok(image) => Ok((booting, image)),
                Err(e) if e.code() == domain::Code::Unavailable => Err(e),
                Err(e) => {
                    let serve = Serve::Error { why: e.message };
                    Ok((Booting { serve, token: None, ..booting }, Wanted::default()))
                }
            },
            _ => Ok((booting, Wanted::default())),
        }
    }

    async fn has_installer(&self) -> Result<bool, Error> {
        for name in [&self.places.installer_kernel, &self.places.installer_initrd] {
            match self.service.get_image(name).await {
                Ok(_) => {}
                Err(e) if e.reason == Reason::ImageNotFound => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    fn was_leased(&self, peer: Option<IpAddr>, mac: &str) -> bool {
        match (&self.leases, peer) {
            (None, _) => true,
            (Some(leases), Some(IpAddr::V4(ip))) => leases.leased_to(ip) == MacAddress::parse(mac),
            (Some(_), Some(IpAddr::V6(_)) | None) => false,
        }
    }

    async fn image_of(&self, order: &InstallOrder, workflow: Option<&BootWorkflow>) -> Result<Wanted, Error> {
        let workflow = workflow.filter(|_| order.task == OrderTask::Install);
        let Some(workflow) = workflow else { return Ok(Wanted::default()) };
        let ours = order.image.is_empty();
        let name = if ours { &workflow.image } else { &order.image };
        if name.is_empty() {
            return Ok(Wanted::default());
        }
        if is_url(name) {
            let sha256 = workflow.image_sha256.clone();
            return Ok(Wanted { url: name.clone(), sha256, bytes: 0, packed: name.ends_with(".gz") });
        }
        let image = self.service.get_image(name).await?;
        if ours && !workflow.image_sha256.is_empty() && workflow.image_sha256 != image.sha256 {
            let message = format!(
                "image {name:?} has the digest {}, and workflow {} asks for {}",
                image.sha256, workflow.id, workflow.image_sha256
            );
            return Err(Error::new(Reason::WorkflowMissing, message));
        }
        let url = format!("{}/images/sha256/{}", self.places.public_url, image.sha256);
        Ok(Wanted { url, sha256: image.sha256, bytes: image.bytes, packed: image.kind == "gzip" })
    }
}

/// A line of an order, for a shell that reads line by line: no value is more than one.
pub fn order_line(name: &str, value: &str) -> String {
    let value: String = value.chars().filter(|c| !c.is_control()).collect();
    format!("{name}='{}'\n", value.replace('\'', "'\\''"))
}

async fn order(State(door): State<Arc<Door>>, headers: HeaderMap) -> Response {
    let ordered = match door.service.ordered(&token(&headers).unwrap_or_default()).await {
        Ok(ordered) => ordered,
        Err(e) => return refused(e),
    };
    let image = match door.image_of(&ordered.order, ordered.workflow.as_ref()).await {
        Ok(image) => image,
        Err(e) => return refused(e),
    };
    let disk = ordered.workflow.as_ref().map_or("auto", |w| w.disk.as_str());
    let (disk, serial) = match disk.strip_prefix("serial:") {
        Some(serial) => ("auto", serial),
        None => (disk, ""),
    };
    let seeds = ordered.order.task == OrderTask::Install && !image.url.is_empty();
    let mut lines = String::new();
    for (name, value) in [
        ("task", ordered.order.task.as_str()),
        ("node", ordered.node.id.as_str()),
        ("attempt", &ordered.order.attempt.to_string()),
        ("image_url", &image.url),
        ("image_sha256", &image.sha256),
        ("image_bytes", &image.bytes.to_string()),
        ("image_format", if image.packed { "raw.gz" } else { "raw" }),
        ("disk", disk),
        ("disk_serial", serial),
        ("seed", if seeds { "yes" } else { "no" }),
        ("reboot", "disk"),
    ] {
        lines.push_str(&order_line(name, value));
    }
    text(StatusCode::OK, lines)
}

/// NoCloud, as cloud-init reads it.
async fn seed(State(door): State<Arc<Door>>, Path(file): Path<String>, headers: HeaderMap) -> Response {
    let token = token(&headers).unwrap_or_default();
    let ordered = match door.service.ordered(&token).await {
        Ok(ordered) => ordered,
        Err(e) => return refused(e),
    };
    match file.as_str() {
        "meta-data" => {
            let (id, hostname) = (&ordered.order.id, ordered.hostname());
            // in quotes: "1.5" or "null" is a name, too
            text(StatusCode::OK, format!("instance-id: {id}\nlocal-hostname: \"{hostname}\"\n"))
        }
        "user-data" => match door.user_data(&ordered, &token).await {
            Ok(data) => text(StatusCode::OK, data),
            Err(e) => refused(e),
        },
        "network-config" => text(
            StatusCode::OK,
            "version: 2\nethernets:\n  all:\n    match: {name: \"*\"}\n    dhcp4: true\n".to_owned(),
        ),
        other => refused(Error::new(Reason::NoSuchPath, format!("there is no seed {other:?}"))),
    }
}

impl Door {
    /// What the order names, else what its workflow says, else nothing that cloud-init would trip over. A job's words stand
    /// beside the workflow's.
    async fn user_data(&self, ordered: &Ordered, token: &str) -> Result<String, Error> {
        if ordered.is_of_a_job() {
            let own = self.template(ordered, token).await?;
            let told = self.service.agent_user_data(ordered, own.as_deref()).await?;
            return Ok(told.reveal().to_owned());
        }
        if let Some(named) = self.service.user_data(ordered).await? {
            return Ok(named.reveal().to_owned());
        }
        let own = self.template(ordered, token).await?;
        Ok(own.unwrap_or_else(|| "#cloud-config\n{}\n".to_owned()))
    }

    async fn template(&self, ordered: &Ordered, token: &str) -> Result<Option<String>, Error> {
        let Some(workflow) = ordered.workflow.as_ref().filter(|w| !w.template.is_empty()) else { return Ok(None) };
        let image = self.image_of(&ordered.order, Some(workflow)).await?;
        workflow.rendered_template(&script::values(&self.places, &ordered.node, token, &image)).map(Some)
    }
}

/// The rendered file of answers, for a distribution's installer, which fetches it by its URL alone.
async fn answers(State(door): State<Arc<Door>>, RawQuery(raw): RawQuery) -> Response {
    let query = query(raw.as_deref());
    let token = value(&query, "token");
    let rendered = async {
        let ordered = door.service.ordered(token).await?;
        let missing = || Error::new(Reason::WorkflowMissing, "this order has no workflow with a file of answers");
        let workflow = ordered.workflow.as_ref().filter(|w| !w.template.is_empty()).ok_or_else(missing)?;
        let image = door.image_of(&ordered.order, Some(workflow)).await?;
        workflow.rendered_template(&script::values(&door.places, &ordered.node, token, &image))
    };
    match rendered.await {
        Ok(answers) => text(StatusCode::OK, answers),
        Err(e) => refused(e),
    }
}

/// The body of a report. What is not known is passed over: installers and servers are not always of one age.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Sent {
    mac_address: String,
    ip_address: Option<String>,
    hostname: Option<String>,
    vendor: Option<String>,
    model: Option<String>,
    serial_number: Option<String>,
    system_uuid: Option<String>,
    installation_status: Option<String>,
    installation_progress: Option<i64>,
    installation_error: Option<String>,
    token: Option<String>,
    log_lines: Vec<String>,
    facts: Option<serde_json::Value>,
    evidence: Option<serde_json::Value>,
}

impl Sent {
    /// As strictly as any other request: all of it is JSON, no key stands twice, and a list of values is no report,
    /// though its items could be taken for the fields in their order.
    fn read(body: &[u8]) -> Result<Self, Error> {
        let wrong = |e: &dyn Display| Error::field("body", format!("is not a report: {e}"));
        match serde_json::from_slice(body).map_err(|e| wrong(&e))? {
            Strict(value) if value.is_object() => serde_json::from_value(value).map_err(|e| wrong(&e)),
            Strict(_) => Err(wrong(&"it must be an object")),
        }
    }
}

/// Levels of a document: more than hardware is described by, and as few as every reader of our messages takes.
const DEPTH_MAX: usize = 16;

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// What is no object says nothing.
fn document(field: &str, value: Option<serde_json::Value>) -> Result<Option<String>, Error> {
    let Some(value) = value.filter(serde_json::Value::is_object) else { return Ok(None) };
    if depth(&value) > DEPTH_MAX {
        return Err(Error::field(field, format!("has more than {DEPTH_MAX} levels")));
    }
    Ok(Some(value.to_string()))
}

async fn report(State(door): State<Arc<Door>>, headers: HeaderMap, body: Bytes) -> Response {
    take(&door, &headers, &body, None).await
}

async fn status(State(door): State<Arc<Door>>, Path(id): Path<String>, headers: HeaderMap, body: Bytes) -> Response {
    take(&door, &headers, &body, Some(id)).await
}

async fn take(door: &Door, headers: &HeaderMap, body: &[u8], id: Option<String>) -> Response {
    let sent = match Sent::read(body) {
        Ok(sent) => sent,
        Err(e) => return refused(e),
    };
    let mac = match id {
        None => sent.mac_address,
        Some(id) => match door.service.get_boot_node(&id).await {
            Ok(node) => node.mac.to_string(),
            Err(e) => return refused(e),
        },
    };
    let (inventory, evidence) = match (document("facts", sent.facts), document("evidence", sent.evidence)) {
        (Ok(inventory), Ok(evidence)) => (inventory, evidence),
        (Err(e), _) | (_, Err(e)) => return refused(e),
    };
    let report = Report {
        mac,
        token: token(headers).or(sent.token).map(Secret::new),
        claims: Claims {
            hostname: sent.hostname.unwrap_or_default(),
            ip_address: sent.ip_address.unwrap_or_default(),
            vendor: sent.vendor.unwrap_or_default(),
            model: sent.model.unwrap_or_default(),
            serial_number: sent.serial_number.unwrap_or_default(),
            system_uuid: sent.system_uuid.unwrap_or_default(),
            arch: String::new(),
            boot_mode: String::new(),
        },
        status: sent.installation_status,
        progress: sent.installation_progress,
        error: sent.installation_error,
        lines: sent.log_lines,
        inventory,
        evidence,
    };
    let said = report.status.as_deref().and_then(|status| Said::parse(status).ok());
    match door.service.report(report, &door.setup).await {
        Ok(Reported { applied, state, reason }) => {
            reported(said, if applied { "applied" } else { "ignored" });
            let answer = serde_json::json!({ "applied": applied, "state": state, "reason": reason });
            (StatusCode::OK, [(CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
        }
        Err(e) => {
            reported(said, "refused");
            refused(e)
        }
    }
}
