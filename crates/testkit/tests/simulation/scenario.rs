//! One seed from its beginning to its verdict, and the story of it.

use crate::chaos;
use crate::clients::Clients;
use crate::judge::{Ends, judge};
use crate::rest;
use crate::watcher::{Seen, follow};
use crate::world::World;
use domain::machine::{Labels, MachineSpec};
use domain::plan::{BootMode, Plan, RebootMode, Step, StepKind};
use service::{Call, NewMachine};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

pub struct Report {
    pub problems: Vec<String>,
    /// Of the whole log and of all effects.
    pub digest: String,
    pub story: Vec<String>,
    pub counts: BTreeMap<&'static str, u64>,
}

pub fn play(seed: u64) -> Report {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(scenario(seed))
}

fn plans() -> Vec<Plan> {
    let step = |name: &str, seconds, kind| Step {
        name: name.to_owned(),
        timeout_seconds: Some(seconds),
        max_retries: Some(2),
        kind,
    };
    let netboot = || step("netboot", 30, StepKind::Netboot { mode: BootMode::Pxe, persistent: false });
    let image = "ubuntu-24.04".to_owned();
    let repave = || step("install", 40, StepKind::Repave { image: image.clone(), user_data_ref: String::new() });
    let reboot = |name: &str| step(name, 30, StepKind::Reboot { mode: RebootMode::Bmc });
    let command = |name: &str| {
        let (command, args) = ("echo".to_owned(), vec!["hello".to_owned()]);
        step(name, 25, StepKind::Ssh { command, args, environment: BTreeMap::new() })
    };
    let cluster = || "prod".to_owned();
    let plan = |id: &str, steps| Plan { id: id.to_owned(), display_name: String::new(), steps };
    vec![
        plan("quick-repave", vec![netboot(), repave(), reboot("reboot")]),
        plan(
            "quick-join",
            vec![
                netboot(),
                repave(),
                reboot("reboot"),
                step("join", 30, StepKind::Join { cluster_ref: cluster() }),
                step("verify", 30, StepKind::Verify { cluster_ref: cluster() }),
            ],
        ),
        plan("quick-command", vec![command("first"), command("second")]),
        plan("quick-reboot", vec![reboot("once"), reboot("twice")]),
        plan("quick-net", vec![step("net", 20, StepKind::Net { parameters: BTreeMap::new() })]),
    ]
}

/// Registers the fleet; answers each machine's labels as they are without faults.
async fn furnish(world: &World) -> BTreeMap<String, Labels> {
    let service = world.any_service().expect("a server: nothing has failed yet");
    for plan in plans() {
        service.create_plan(&Call::system(), plan, "api").await.expect("a plan");
    }
    let mut fleet = BTreeMap::new();
    for n in 0..world.nature.between(3, 20) {
        let id = format!("m-{n:02}");
        let spec = MachineSpec {
            provider: "sim".to_owned(),
            rack: format!("r{}", n % 4),
            target_cluster_ref: if world.nature.chance(500) { "prod".to_owned() } else { String::new() },
            ..MachineSpec::default()
        };
        let latency = *world.nature.pick(&["", "0", "0", "40", "300", "800"]);
        let latency = (!latency.is_empty()).then(|| ("sim.latency_ms".to_owned(), latency.to_owned()));
        let labels: Labels = latency.into_iter().collect();
        let new = NewMachine { id: id.clone(), spec, labels: labels.clone(), version: 0 };
        service.register_machine(&Call::system(), new).await.expect("a machine");
        fleet.insert(id, labels);
    }
    fleet
}

async fn scenario(seed: u64) -> Report {
    let ends = Arc::new(Ends::default());
    let world = Arc::new(World::new(seed, ends.clone()).expect("a store in memory"));
    let nature = world.nature.clone();
    let began = world.store.ambient().now().micros();
    for place in 0..world.places() {
        world.start(place).await;
    }
    let fleet = furnish(&world).await;
    let clients = Clients::new(world.clone(), fleet.keys().cloned().collect());
    let watchers: Vec<Arc<Seen>> = (0..nature.between(1, 2)).map(|_| Arc::default()).collect();
    let followers: Vec<_> = watchers.iter().map(|seen| tokio::spawn(follow(world.clone(), seen.clone()))).collect();

    nature.rage();
    nature.set_store_faults(nature.below(12));
    nature.set_device_faults(nature.below(60));
    let until = nature.passed() + nature.millis(15_000, 55_000);
    let acting: Vec<_> = (0..nature.between(2, 5)).map(|_| tokio::spawn(clients.clone().act())).collect();
    let raging: Vec<_> = (0..2).map(|_| tokio::spawn(chaos::rage(world.clone(), until))).collect();
    for task in raging {
        task.await.expect("chaos does not panic");
    }
    chaos::calm(&world).await;
    for task in acting {
        task.await.expect("a client does not panic");
    }
    clients.repair(&fleet).await;
    rest::come_to_rest(&world).await;
    let mut story = Vec::new();
    if let Some(books) = rest::books(&world).await {
        rest::check(&world, &books, &clients, &watchers).await;
        let effects = world.sim.effects().expect("a journal in memory");
        judge(&world, &books, &effects, &ends, began);
        story = tell(&books, &effects, began);
    }
    followers.iter().for_each(|task| task.abort());
    world.end();
    let mut digest = DefaultHasher::new();
    story.iter().for_each(|(_, line)| line.hash(&mut digest));
    let noted = nature.notes().into_iter().map(|(at, note)| (i64::try_from(at.as_micros()).unwrap_or(0), note));
    story.extend(noted);
    story.sort_by_key(|(at, _)| *at);
    Report {
        problems: nature.problems(),
        digest: format!("{:016x}", digest.finish()),
        story: story
            .into_iter()
            .map(|(at, line)| format!("{:>11.3} {line}", Duration::from_micros(at.max(0).unsigned_abs()).as_secs_f64()))
            .collect(),
        counts: nature.counts(),
    }
}

/// All rows of the log, all journals and all effects, each with its time since the beginning.
fn tell(books: &rest::Books, effects: &[sim::Effect], began: i64) -> Vec<(i64, String)> {
    let mut lines = Vec::new();
    for r in &books.log {
        let (from, to) = (&r.from_state, &r.to_state);
        let who = format!("{} {} ({}, {})", r.trigger, r.comment, r.owner, r.actor);
        let line = format!(
            "log {}: {} {} {from}->{to} v{} {who} {}",
            r.sequence, r.entity_kind, r.entity_id, r.version, r.metadata
        );
        lines.push((r.at.micros() - began, line));
    }
    for (e, journal) in &books.executions {
        for j in journal {
            lines.push((
                j.at.micros() - began,
                format!("journal {} {}: fence {} {} {}", e.id, j.number, j.fence, j.entry, j.detail),
            ));
        }
    }
    for e in effects {
        let line =
            format!("effect {}: {} {} by {} fence {} {}", e.number, e.machine, e.kind, e.operation, e.fence, e.detail);
        lines.push((e.at_micros - began, line));
    }
    lines
}
