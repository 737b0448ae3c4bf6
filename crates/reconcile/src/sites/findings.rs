//! What of a MAAS's word becomes a finding. Planned from what is read, planned again where it is written, and written only
//! where something is new. While automation is frozen nothing is said.

use crate::options::PAGE;
use crate::reconciler::Core;
use domain::finding::{Finding, FindingKind, FindingState};
use domain::maas_drift::{Beheld, Verdict, duplicate, unknown};
use domain::maas_machine::{Identifier, Sight, Traits};
use domain::node::{MaasRef, NodeStatus};
use domain::site::Site;
use domain::{Error, FindingId, NodeId};
use std::collections::BTreeSet;
use std::time::Duration;
use store::maas_machine::Linked;
use store::{Caller, Tx, TxResult, finding, maas_machine, node, switch};

/// In whose name.
const BY: &str = "maas";
/// A site that is out of reach for a moment is not worth anybody's time.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(60);
/// Planned in one snapshot.
const BATCH: usize = 50;
/// Findings that one plan may open.
const FRESH: usize = 6;

const KINDS: [FindingKind; 5] = [
    FindingKind::MaasDrift,
    FindingKind::MaasMachineGone,
    FindingKind::MaasStatusUnknown,
    FindingKind::MaasDuplicate,
    FindingKind::MaasChanged,
];

/// The site does not answer. Since when is in its sight.
pub(super) async fn unreachable(core: &Core, site: &Site, sight: &Sight) -> Result<(), Error> {
    let now = core.store.ambient().now();
    let Some(since) =
        sight.unreachable_since.filter(|since| now.since(*since) >= UNREACHABLE_AFTER.max(site.policy.poll * 3))
    else {
        return Ok(());
    };
    let message = format!("site {} is out of reach since {since}: {}", site.name, sight.unreachable_why);
    let subject = site.name.clone();
    let fresh = FindingId::generate(core.store.ambient().uuid());
    core.store
        .write(&Caller::reconciler(), &site.name, move |tx| {
            let known = finding::unresolved(tx, &subject)?.iter().any(|f| f.kind == FindingKind::SiteUnreachable);
            if known || switch::frozen(tx)?.is_some() {
                return Ok(());
            }
            finding::raise(tx, fresh.clone(), FindingKind::SiteUnreachable, &subject, &message, BY)
        })
        .await
}

/// It answers.
pub(super) async fn reachable(core: &Core, name: &str) -> Result<(), Error> {
    let subject = name.to_owned();
    let open = core.store.read(move |tx| finding::unresolved(tx, &subject)).await?;
    if !open.iter().any(|f| f.kind == FindingKind::SiteUnreachable) {
        return Ok(());
    }
    let subject = name.to_owned();
    let gone = move |tx: &mut Tx<'_>| match switch::frozen(tx)? {
        Some(_) => Ok(()),
        None => finding::gone(tx, FindingKind::SiteUnreachable, &subject, "it answers again", BY),
    };
    core.store.write(&Caller::reconciler(), name, gone).await
}

/// What is judged: a node on its machine, or a machine that no node runs on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Node { site: String, id: NodeId },
    Machine(MaasRef),
}

impl Target {
    fn of(tx: &mut Tx<'_>, at: MaasRef) -> TxResult<Self> {
        Ok(match tx.point(&node::by_maas(&at))? {
            Some(node) => Target::Node { site: at.site, id: node.id },
            None => Target::Machine(at),
        })
    }

    fn subject(&self) -> String {
        match self {
            Target::Node { id, .. } => id.to_string(),
            Target::Machine(at) => at.to_string(),
        }
    }
}

/// What there is to write.
enum Deed {
    Raise(FindingKind, String),
    Gone(FindingKind, String),
    Settle(MaasRef, Option<Traits>),
}

/// Machines of which MAAS has said something new, and those that they have something in common with.
pub(super) async fn of_machines(core: &Core, site: &str, changed: &[String]) -> Result<(), Error> {
    for ids in changed.chunks(BATCH) {
        let refs: Vec<MaasRef> =
            ids.iter().map(|id| MaasRef { site: site.to_owned(), system_id: id.clone() }).collect();
        let read = move |tx: &mut Tx<'_>| {
            let mut targets = BTreeSet::new();
            for at in &refs {
                for (_, _, other) in maas_machine::shared(tx, at)? {
                    targets.insert(Target::of(tx, other)?);
                }
                targets.insert(Target::of(tx, at.clone())?);
            }
            Ok(targets.into_iter().collect::<Vec<_>>())
        };
        let targets = core.store.read(read).await?;
        settle(core, targets).await?;
    }
    Ok(())
}

/// All nodes on machines of a site, and whatever is open about machines and nodes that may be gone.
pub(super) async fn of_all(core: &Core, site: &str) -> Result<(), Error> {
    let mut after = String::new();
    loop {
        let (name, from) = (site.to_owned(), after.clone());
        let page = core.store.read(move |tx| maas_machine::linked(tx, &name, &from, PAGE)).await?;
        let now = core.store.ambient().now();
        let due = page.iter().filter(|linked| is_due(linked, now));
        settle(core, due.map(|l| Target::Node { site: site.to_owned(), id: l.node.id.clone() }).collect()).await?;
        match page.last() {
            Some(last) if page.len() >= PAGE => after.clone_from(&last.machine.at.system_id),
            Some(_) | None => break,
        }
    }
    for kind in KINDS {
        open_ones(core, site, kind).await?;
    }
    Ok(())
}

/// Whether there may be something to write.
fn is_due(linked: &Linked, now: domain::Timestamp) -> bool {
    let beheld = behold(linked, &[], now);
    let found = |(_, verdict): &(FindingKind, Verdict)| matches!(verdict, Verdict::Found(_));
    linked.shares
        || linked.open > 0
        || beheld.verdicts().iter().any(found)
        || settles(linked, &beheld, false) != linked.machine.settled
}

/// What is open about a machine that no node runs on, or about a node that is no more.
async fn open_ones(core: &Core, site: &str, kind: FindingKind) -> Result<(), Error> {
    let (mut after, ours) = (String::new(), format!("{site}/"));
    loop {
        let from = after.clone();
        let page = core.store.read(move |tx| finding::open_of_kind(tx, kind, &from, PAGE)).await?;
        let machines = page
            .iter()
            .filter_map(|open| open.subject.strip_prefix(&ours))
            .map(|id| Target::Machine(MaasRef { site: site.to_owned(), system_id: id.to_owned() }));
        settle(core, machines.collect()).await?;
        for open in page.iter().filter(|open| !open.subject.contains('/')) {
            without_node(core, open).await?;
        }
        match page.last() {
            Some(last) if page.len() >= PAGE => after = last.id.to_string(),
            Some(_) | None => return Ok(()),
        }
    }
}

/// What is open about a site that was removed, or about machines of it.
pub(super) async fn of_removed_sites(core: &Core, there: &BTreeSet<String>) -> Result<(), Error> {
    for kind in [FindingKind::SiteUnreachable, FindingKind::MaasStatusUnknown, FindingKind::MaasDuplicate] {
        let mut after = String::new();
        loop {
            let from = after.clone();
            let page = core.store.read(move |tx| finding::open_of_kind(tx, kind, &from, PAGE)).await?;
            for open in &page {
                let site = match (kind, open.subject.split_once('/')) {
                    (_, Some((site, _))) => site,
                    (FindingKind::SiteUnreachable, None) => open.subject.as_str(),
                    // a node's
                    (_, None) => continue,
                };
                if !there.contains(site) {
                    gone(core, open, "the site was removed").await?;
                }
            }
            match page.last() {
                Some(last) if page.len() >= PAGE => after = last.id.to_string(),
                Some(_) | None => break,
            }
        }
    }
    Ok(())
}

/// A node that is deleted, or is on no machine of a MAAS any more, has no trouble there.
async fn without_node(core: &Core, open: &Finding) -> Result<(), Error> {
    let id = NodeId::from_text(open.subject.as_str());
    let there = core.store.point(node::by_id(&id)).await?;
    if there.is_some_and(|node| node.status != NodeStatus::Deleted && node.maas.is_some()) {
        return Ok(());
    }
    gone(core, open, "the node is on no machine of a MAAS any more").await
}

async fn gone(core: &Core, open: &Finding, evidence: &'static str) -> Result<(), Error> {
    let (kind, subject) = (open.kind, open.subject.clone());
    let gone = move |tx: &mut Tx<'_>| match switch::frozen(tx)? {
        Some(_) => Ok(()),
        None => finding::gone(tx, kind, &subject, evidence, BY),
    };
    core.store.write(&Caller::reconciler(), &open.subject, gone).await
}

/// Writes what there is to write about each.
async fn settle(core: &Core, targets: Vec<Target>) -> Result<(), Error> {
    for batch in targets.chunks(BATCH) {
        let looked_at = batch.to_vec();
        let read = move |tx: &mut Tx<'_>| {
            let mut due = Vec::new();
            for target in &looked_at {
                if !plan(tx, target)?.is_empty() {
                    due.push(target.clone());
                }
            }
            Ok(due)
        };
        for target in core.store.read(read).await? {
            let fresh: Vec<FindingId> = (0..FRESH).map(|_| FindingId::generate(core.store.ambient().uuid())).collect();
            let key = target.subject();
            let write = move |tx: &mut Tx<'_>| {
                let subject = target.subject();
                for (deed, id) in plan(tx, &target)?.into_iter().zip(&fresh) {
                    match deed {
                        Deed::Raise(kind, message) => {
                            finding::raise(tx, id.clone(), kind, &subject, &message, BY)?;
                        }
                        Deed::Gone(kind, evidence) => finding::gone(tx, kind, &subject, &evidence, BY)?,
                        Deed::Settle(at, traits) => maas_machine::settle(tx, &at, traits.as_ref())?,
                    }
                }
                Ok(())
            };
            core.store.write(&Caller::reconciler(), &key, write).await?;
        }
    }
    Ok(())
}

fn behold<'a>(linked: &'a Linked, shared: &'a [(Identifier, String, MaasRef)], now: domain::Timestamp) -> Beheld<'a> {
    let (node, machine) = (&linked.node, &linked.machine);
    Beheld { node, machine, job: linked.job, quiet_since: linked.quiet_since, shared, now }
}

/// How the machine is to be compared from now on: not at all while a job of ours works on it upstream, and from what it is
/// when that has ended. While it is `found` to be another than it was, what it was is kept.
fn settles(linked: &Linked, beheld: &Beheld<'_>, found: bool) -> Option<Traits> {
    let machine = &linked.machine;
    match &machine.settled {
        Some(_) if !found && linked.deploys && linked.job.is_some_and(|job| job.status.is_under_way()) => None,
        None if !beheld.is_ours() && linked.job.is_none() && machine.absent_since.is_none() => {
            Some(machine.told.traits())
        }
        settled => settled.clone(),
    }
}

fn plan(tx: &mut Tx<'_>, target: &Target) -> TxResult<Vec<Deed>> {
    if switch::frozen(tx)?.is_some() {
        return Ok(Vec::new());
    }
    let open = finding::unresolved(tx, &target.subject())?;
    match target {
        Target::Node { site, id } => plan_node(tx, site, id, &open),
        Target::Machine(at) => plan_machine(tx, at, &open),
    }
}

/// What is new of a verdict.
fn deed(kind: FindingKind, verdict: Verdict, open: &[Finding]) -> Option<Deed> {
    let known = open.iter().find(|f| f.kind == kind);
    match (verdict, known) {
        (Verdict::Found(message), Some(known)) if known.message == message => None,
        (Verdict::Found(message), _) => Some(Deed::Raise(kind, message)),
        (Verdict::Gone(evidence), Some(_)) => Some(Deed::Gone(kind, evidence)),
        (Verdict::Gone(_), None) => None,
    }
}

fn plan_node(tx: &mut Tx<'_>, site: &str, id: &NodeId, open: &[Finding]) -> TxResult<Vec<Deed>> {
    let Some(linked) = tx.point(&maas_machine::linked_node(site, id))? else { return Ok(Vec::new()) };
    let at = linked.machine.at.clone();
    let shared = if linked.shares { maas_machine::shared(tx, &at)? } else { Vec::new() };
    let beheld = behold(&linked, &shared, tx.now());
    let mut deeds = Vec::new();
    let found = open.iter().find(|f| f.kind == FindingKind::MaasChanged);
    let settled = settles(&linked, &beheld, found.is_some());
    if settled != linked.machine.settled {
        deeds.push(Deed::Settle(at.clone(), settled));
    }
    for (kind, verdict) in beheld.verdicts() {
        if kind == FindingKind::MaasChanged && matches!(verdict, Verdict::Found(_)) {
            let ours = found.is_some_and(|f| linked.deployed_at.is_some_and(|at| at > f.last_seen));
            if ours || is_accepted(tx, id, &linked)? {
                deeds.push(Deed::Settle(at.clone(), Some(linked.machine.told.traits())));
                deeds.extend(deed(kind, Verdict::Gone("a job of ours has deployed it since".to_owned()), open));
                continue;
            }
        }
        deeds.extend(deed(kind, verdict, open));
    }
    Ok(deeds)
}

/// Somebody has said of this very change that it is fine.
fn is_accepted(tx: &mut Tx<'_>, id: &NodeId, linked: &Linked) -> TxResult<bool> {
    let there = finding::of(tx, id.as_str(), FindingKind::MaasChanged)?;
    Ok(there.is_some_and(|f| {
        f.state == FindingState::Resolved && !f.handled_by.is_empty() && f.last_seen >= linked.machine.changed_at
    }))
}

fn plan_machine(tx: &mut Tx<'_>, at: &MaasRef, open: &[Finding]) -> TxResult<Vec<Deed>> {
    let kinds = [FindingKind::MaasStatusUnknown, FindingKind::MaasDuplicate];
    let over = |why: &str| kinds.iter().filter_map(|kind| deed(*kind, Verdict::Gone(why.to_owned()), open)).collect();
    if let Some(node) = tx.point(&node::by_maas(at))? {
        return Ok(over(&format!("node {} runs on it since, and has its own", node.id)));
    }
    let Some(machine) = tx.point(&maas_machine::by_ref(at))? else {
        return Ok(over("the site is not watched any more"));
    };
    let shared = maas_machine::shared(tx, at)?;
    let verdicts = [unknown(&machine), duplicate(&machine, &shared)];
    Ok(kinds.into_iter().zip(verdicts).filter_map(|(kind, verdict)| deed(kind, verdict, open)).collect())
}
