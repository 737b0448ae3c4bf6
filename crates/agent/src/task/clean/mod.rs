//! Looking for what a tenant may have left, and removing it: one catalogue for both, so that nothing is looked for that
//! cannot be told of, and nothing is removed that is not looked for again afterwards.

pub mod accounts;
pub mod areas;
pub mod baseline;
pub mod catalogue;
mod live;
mod places;
mod policy;
mod remove;

use super::process::{Occupant, Who};
use super::{Context, Done, Failed, Outcome, in_background};
use crate::host::{Host, shown};
use accounts::Accounts;
use baseline::Baseline;
use catalogue::{CHECKS, Check, Find};
use domain::stage::FailureClass;
use proto::agent::v1::CleanPolicy;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Leftovers of one kind that are held at a time; more are counted, and come in the next round.
const HELD: usize = 65_536;
/// Of these as many are told.
const EXAMPLES: usize = 10;
const EXAMPLE_LENGTH: usize = 240;
/// And so many in the one sentence that everybody reads.
const NAMED: usize = 3;
/// Rounds of looking and removing.
const ROUNDS: usize = 64;

/// How a leftover goes away.
#[derive(Clone, Debug)]
pub enum How {
    /// The file, link or folder itself.
    Tree,
    /// The same, and systemd is told first.
    Unit,
    /// One line of a file: gone, or changed.
    Line {
        from: Vec<u8>,
        to: Option<Vec<u8>>,
    },
    Process(Occupant),
    Unmount,
    /// Of System V: the option of `ipcrm`, and the number.
    Segment(&'static str, String),
    /// Not by us: why.
    Nothing(&'static str),
}

/// A leftover: where on the machine, in words, and how it goes.
#[derive(Clone, Debug)]
pub struct Item {
    pub at: PathBuf,
    pub says: String,
    pub how: How,
}

impl Item {
    pub fn new(at: impl Into<PathBuf>, how: How) -> Self {
        let at = at.into();
        Self { says: shown(&at), at, how }
    }

    fn saying(mut self, what: &str) -> Self {
        self.says = format!("{}: {what}", self.says);
        self
    }
}

/// What one look has seen.
#[derive(Debug, Default)]
pub struct Found {
    pub examined: u64,
    pub count: u64,
    pub items: Vec<Item>,
}

impl Found {
    pub fn add(&mut self, item: Item) {
        self.count += 1;
        if self.items.len() < HELD {
            self.items.push(item);
        }
    }
}

/// What a look is given. A check that cannot be made answers with the reason, in words.
pub struct View {
    pub host: Host,
    pub policy: CleanPolicy,
    pub who: Who,
    pub accounts: Accounts,
    pub baseline: Result<Baseline, String>,
    pub cancel: CancellationToken,
}

impl View {
    fn new(context: &Context, policy: &CleanPolicy) -> Result<Self, Failed> {
        let uid_min = if policy.uid_min == 0 { 1000 } else { policy.uid_min };
        let invalid = |message: String| Failed {
            code: "INVALID_POLICY",
            class: FailureClass::InvalidInput,
            message,
            detail: Value::Null,
        };
        // below it are the users of the system itself
        if uid_min < 100 {
            return Err(invalid(format!("uid_min {uid_min} would make tenants of the system's own users")));
        }
        let mut policy = policy.clone();
        for path in policy.scratch_paths.iter_mut().chain(&mut policy.kept_mounts) {
            *path = policy::plain(path).ok_or_else(|| invalid(format!("{path:?} is no plain absolute path")))?;
        }
        for path in &policy.scratch_paths {
            policy::refuse_scratch(&context.host, &context.state, path).map_err(invalid)?;
        }
        let baseline = Baseline::load(&context.state);
        let accounts = Accounts::read(&context.host, uid_min, &policy.kept_users, baseline.as_ref().ok());
        let accounts = accounts.map_err(|message| Failed {
            code: "CHECK_FAILED",
            class: FailureClass::NeedsOperator,
            message,
            detail: Value::Null,
        })?;
        let who = Who { uid_min, kept: accounts.kept_uids() };
        let (host, cancel) = (context.host.clone(), context.cancel.clone());
        Ok(Self { host, policy, who, accounts, baseline, cancel })
    }

    /// Links of the site's that may be followed.
    pub fn links(&self) -> super::beneath::Links {
        self.baseline.as_ref().map(|baseline| baseline.links.clone()).unwrap_or_default()
    }

    pub fn canceled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    fn look(&self, check: &Check) -> Result<Found, String> {
        match check.find {
            Find::Look(look) => look(self),
            Find::Areas(list) => areas::look(self, list),
        }
    }
}

/// One line of the record.
#[derive(Debug, Default)]
struct Verdict {
    examined: u64,
    found: u64,
    removed: u64,
    left: u64,
    examples: Vec<String>,
    /// Something is left that trying again does not help.
    for_a_person: bool,
    error: Option<String>,
}

impl Verdict {
    fn of(found: &Found) -> Self {
        let mut verdict = Self { examined: found.examined, found: found.count, left: found.count, ..Self::default() };
        verdict.tell(found);
        verdict
    }

    fn tell(&mut self, found: &Found) {
        self.for_a_person = found.items.iter().any(|item| matches!(item.how, How::Nothing(_)));
        self.examples = found.items.iter().take(EXAMPLES).map(|item| bounded(&item.says)).collect();
    }

    fn failed(error: String) -> Self {
        Self { error: Some(bounded(&error)), ..Self::default() }
    }

    fn json(&self, check: &Check) -> Value {
        json!({
            "name": check.name, "what": check.what, "examined": self.examined, "found": self.found,
            "removed": self.removed, "left": self.left, "examples": self.examples, "error": self.error,
        })
    }
}

fn bounded(text: &str) -> String {
    match text.char_indices().nth(EXAMPLE_LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn look_once(view: &View, check: &Check) -> Verdict {
    match view.look(check) {
        Ok(found) => Verdict::of(&found),
        Err(error) => Verdict::failed(error),
    }
}

/// Looks, removes, and looks again, as long as that helps.
fn look_and_remove(view: &View, check: &Check) -> Verdict {
    let mut found = match view.look(check) {
        Ok(found) => found,
        Err(error) => return Verdict::failed(error),
    };
    let mut verdict = Verdict::of(&found);
    for _ in 0..ROUNDS {
        if found.count == 0 || view.canceled() {
            break;
        }
        let before = found.count;
        let why = remove::all(view, &found.items);
        found = match view.look(check) {
            Ok(found) => found,
            Err(error) => return Verdict { error: Some(bounded(&error)), ..verdict },
        };
        for item in &mut found.items {
            if let Some(why) = why.get(&item.says) {
                item.says = format!("{}: {why}", item.says);
            }
        }
        verdict.removed += before.saturating_sub(found.count);
        if found.count > 0 {
            verdict.tell(&found);
        }
        if found.count >= before {
            break;
        }
    }
    verdict.left = found.count;
    verdict.for_a_person &= found.count > 0;
    verdict
}

/// The whole catalogue, and what comes of it.
pub async fn go_through(context: &Context, policy: Option<&CleanPolicy>, removing: bool) -> Outcome {
    let policy = policy.cloned().unwrap_or_default();
    let view = {
        let own = context.clone();
        in_background(context, move || View::new(&own, &policy)).await??
    };
    if !removing {
        return each_check(context, &Arc::new(view), false).await;
    }
    if let Err(error) = &view.baseline {
        let message = format!("{error}; nothing was removed");
        return Err(super::failed("CHECK_FAILED", FailureClass::NeedsOperator, message));
    }
    let view = Arc::new(view);
    let same = view.clone();
    let stopped = in_background(context, move || remove::stop_engines(&same)).await?;
    let outcome = each_check(context, &view, true).await;
    let still = in_background(context, move || remove::start_engines(&view, &stopped)).await?;
    for name in still {
        context.printer.say(&format!("{name} was stopped for this and does not start again")).await;
    }
    outcome
}

async fn each_check(context: &Context, view: &Arc<View>, removing: bool) -> Outcome {
    let (mut lines, mut left, mut for_a_person, mut failed, mut found, mut removed) =
        (Vec::new(), 0, false, Vec::new(), 0, 0);
    let mut named = Vec::new();
    for check in CHECKS {
        if context.cancel.is_cancelled() {
            return Err(super::canceled(record(view, removing, false, lines)));
        }
        let in_view = view.clone();
        let verdict = in_background(context, move || {
            if removing { look_and_remove(&in_view, check) } else { look_once(&in_view, check) }
        })
        .await?;
        let said = match &verdict.error {
            Some(error) => format!("{}: could not be checked: {error}", check.name),
            None => {
                format!("{}: {} examined, {} found, {} left", check.name, verdict.examined, verdict.found, verdict.left)
            }
        };
        context.printer.say(&said).await;
        lines.push(verdict.json(check));
        left += verdict.left;
        if verdict.left > 0 {
            named.extend(verdict.examples.iter().take(NAMED).map(|example| format!("{} {example}", check.name)));
        }
        found += verdict.found;
        removed += verdict.removed;
        for_a_person |= verdict.for_a_person;
        if verdict.error.is_some() {
            failed.push(check.name);
        }
    }
    if context.cancel.is_cancelled() {
        return Err(super::canceled(record(view, removing, false, lines)));
    }
    let detail = record(view, removing, left == 0 && failed.is_empty(), lines);
    if !failed.is_empty() {
        let message = format!("could not be checked: {}; {left} leftovers known", failed.join(", "));
        return Err(Failed { code: "CHECK_FAILED", class: FailureClass::NeedsOperator, message, detail });
    }
    if left > 0 {
        let class = if removing && !for_a_person { FailureClass::Transient } else { FailureClass::NeedsOperator };
        named.truncate(NAMED);
        let message = format!("leftovers of tenants on this machine: {left}; {}", named.join("; "));
        return Err(Failed { code: "NOT_CLEAN", class, message, detail });
    }
    let message = match (removing, found) {
        (false, _) | (true, 0) => format!("clean: {} checks, nothing found", CHECKS.len()),
        (true, _) => format!("clean: {removed} leftovers removed, {} checks made again, nothing left", CHECKS.len()),
    };
    Ok(Done { message, detail })
}

fn record(view: &View, removing: bool, clean: bool, checks: Vec<Value>) -> Value {
    json!({
        "task": if removing { "node.cleanup_storage" } else { "node.validate_clean" },
        "clean": clean,
        "boot_id": view.host.boot_id().unwrap_or_default(),
        "uid_min": view.who.uid_min,
        "kept_users": view.accounts.kept_names(),
        "kept_mounts": view.policy.kept_mounts,
        "scratch_paths": view.policy.scratch_paths,
        // homes that the baseline knows nothing of: what is in them is not judged
        "homes_not_judged": view.accounts.homes_not_judged(),
        "baseline_sha256": view.baseline.as_ref().map(|baseline| baseline.sha256.clone()).unwrap_or_default(),
        "checks": checks,
    })
}
