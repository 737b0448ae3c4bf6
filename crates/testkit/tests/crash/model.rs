//! What must be true of a machine after a run, whatever went wrong: folded from the provider's effect journal
//! alone. Written apart from engine, workflow and domain, so that a defect there is not repeated here.

use sim::Effect;
use std::collections::BTreeMap;

/// What a step does to the machine, as the effect journal spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Only looks.
    Nothing,
    SetBoot,
    Install,
    Reset,
    Join,
    PowerOff,
    OpenReturn,
    ApplyNetwork,
    Command,
}

impl Act {
    /// The effect that shows that it was done, or begun.
    pub const fn effect(self) -> &'static str {
        match self {
            Act::Nothing => "",
            Act::SetBoot => "netboot",
            Act::Install => "repave_started",
            Act::Reset => "reset",
            Act::Join => "join_started",
            Act::PowerOff => "power_off",
            Act::OpenReturn => "return_opened",
            Act::ApplyNetwork => "net_applied",
            Act::Command => "exec_started",
        }
    }

    /// The upstream knows the operation's key, and does nothing twice for one.
    const fn keyed(self) -> bool {
        match self {
            Act::OpenReturn | Act::Join | Act::Command => true,
            Act::Nothing | Act::SetBoot | Act::Install | Act::Reset | Act::PowerOff | Act::ApplyNetwork => false,
        }
    }

    /// Taken back when the run does not succeed.
    const fn undone(self) -> bool {
        matches!(self, Act::SetBoot)
    }
}

const UNDO: &str = "clear_netboot";
const STOPS: [&str; 2] = ["repave_aborted", "exec_killed"];

#[derive(Clone, Copy, Debug)]
pub struct Stage {
    pub name: &'static str,
    pub act: Act,
}

/// How the caller is told that it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Succeeded,
    Failed,
    Canceled,
}

impl Ending {
    pub const fn as_str(self) -> &'static str {
        match self {
            Ending::Succeeded => "SUCCEEDED",
            Ending::Failed => "FAILED",
            Ending::Canceled => "CANCELED",
        }
    }
}

/// The moment from which on a run may begin nothing more: it was refused for good, or asked to stop.
#[derive(Clone, Debug)]
pub struct End {
    pub ending: Ending,
    /// Effects on this machine by then.
    pub effects: usize,
    /// The step it was at; `None`: nothing had begun.
    pub stage: Option<usize>,
    /// An act of that step was on its way, and may still land.
    pub in_flight: bool,
    /// Asked of an engine at work, which may see that the step is done before it hears: then it ends at the next
    /// step, or there is none.
    pub live: bool,
}

/// What was done to a run, as far as it bears on its outcome.
#[derive(Clone, Debug, Default)]
pub struct Injected {
    pub end: Option<End>,
    /// The act of this step was delivered twice.
    pub twice: Option<usize>,
    /// Taking back this step was refused for good.
    pub undo_refused: Option<usize>,
    /// Stopping what was under way was refused for good.
    pub stop_refused: bool,
}

impl Injected {
    pub fn ending(&self) -> Ending {
        self.end.as_ref().map_or(Ending::Succeeded, |e| e.ending)
    }

    /// The same, if a cancel was heard only when everything was done.
    pub fn heard_too_late(&self, stages: &[Stage]) -> Option<Self> {
        let end = self.end.as_ref()?;
        let late = end.live && end.stage == Some(stages.len() - 1);
        late.then(|| Self { end: None, ..self.clone() })
    }
}

/// The machine, as nothing but its effects make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    pub powered: bool,
    pub up: bool,
    pub boots: u64,
    pub boot_override: Option<String>,
    pub image: Option<String>,
    pub installing: Option<String>,
    pub member: Option<String>,
    pub network: BTreeMap<String, String>,
    pub return_open: bool,
    /// By operation; `None` while it runs.
    pub commands: BTreeMap<String, Option<i64>>,
    persistent: bool,
}

impl World {
    fn new() -> Self {
        Self {
            powered: true,
            up: true,
            boots: 1,
            boot_override: None,
            image: None,
            installing: None,
            member: None,
            network: BTreeMap::new(),
            return_open: false,
            commands: BTreeMap::new(),
            persistent: false,
        }
    }

    pub fn of(effects: &[Effect]) -> Self {
        let mut world = Self::new();
        effects.iter().for_each(|e| world.apply(e));
        world
    }

    fn apply(&mut self, e: &Effect) {
        let text = |field: &str| e.detail.get(field).and_then(|v| v.as_str()).map(str::to_owned);
        match e.kind.as_str() {
            "netboot" => {
                self.boot_override = text("mode");
                self.persistent = e.detail.get("persistent").and_then(serde_json::Value::as_bool) == Some(true);
            }
            "clear_netboot" => self.boot_override = None,
            "reset" => {
                self.stop_all();
                (self.powered, self.up) = (true, false);
                if !self.persistent {
                    self.boot_override = None;
                }
            }
            "booted" => (self.up, self.boots) = (true, self.boots + 1),
            "power_off" => {
                self.stop_all();
                (self.powered, self.up) = (false, false);
            }
            "repave_started" => {
                self.stop_commands();
                (self.member, self.image, self.installing) = (None, None, text("image"));
            }
            "repaved" => self.image = self.installing.take(),
            "repave_aborted" => self.installing = None,
            "joined" => self.member = text("cluster"),
            "net_applied" => {
                let parameters = e.detail.get("parameters").and_then(|p| p.as_object()).cloned().unwrap_or_default();
                self.network =
                    parameters.into_iter().map(|(k, v)| (k, v.as_str().unwrap_or_default().to_owned())).collect();
            }
            "return_opened" => self.return_open = true,
            "exec_started" => drop(self.commands.insert(e.operation.clone(), None)),
            "exec_finished" | "exec_killed" => {
                let code = e.detail.get("exit_code").and_then(serde_json::Value::as_i64);
                if let Some(command) = self.commands.get_mut(&e.operation) {
                    *command = Some(command.unwrap_or(code.unwrap_or(-1)));
                }
            }
            "created" | "deferred" | "join_started" | "fault" => {}
            other => self.boot_override = Some(format!("an effect the model does not know: {other}")),
        }
    }

    fn stop_commands(&mut self) {
        self.commands.values_mut().for_each(|c| *c = Some(c.unwrap_or(-1)));
    }

    fn stop_all(&mut self) {
        self.stop_commands();
        self.installing = None;
    }
}

/// The step of an effect's operation, which is `EXECUTION.STEP.ATTEMPT`.
fn step_of(e: &Effect) -> &str {
    e.operation.split('.').nth(1).unwrap_or_default()
}

fn fence_of(e: &Effect) -> (u64, u64) {
    let (epoch, counter) = e.fence.split_once('.').unwrap_or(("0", "0"));
    (epoch.parse().unwrap_or(0), counter.parse().unwrap_or(0))
}

/// Judges the effects on one machine, in order, since the run was asked for.
pub fn judge(stages: &[Stage], effects: &[Effect], injected: &Injected) -> Result<(), String> {
    let acts: Vec<(usize, usize, &Effect)> = effects
        .iter()
        .enumerate()
        .filter_map(|(at, e)| {
            let stage = stages.iter().position(|s| s.name == step_of(e) && s.act.effect() == e.kind)?;
            Some((at, stage, e))
        })
        .collect();
    let kinds: Vec<&str> = stages.iter().map(|s| s.act.effect()).collect();
    if let Some(e) = effects.iter().find(|e| kinds.contains(&e.kind.as_str()) && !acts.iter().any(|a| a.2 == *e)) {
        return Err(format!("nobody asked for {} by {}", e.kind, e.operation));
    }
    in_order(&acts)?;
    counts(stages, &acts, injected)?;
    nothing_after_the_end(&acts, injected)?;
    unwound(stages, effects, &acts, injected)?;
    fences_rise(effects, &kinds)
}

fn in_order(acts: &[(usize, usize, &Effect)]) -> Result<(), String> {
    match acts.windows(2).find(|w| w[0].1 > w[1].1) {
        Some(w) => Err(format!("{} was done after {}", step_of(w[1].2), step_of(w[0].2))),
        None => Ok(()),
    }
}

/// Steps that were passed were done once, the one in hand at most once, later ones never.
fn counts(stages: &[Stage], acts: &[(usize, usize, &Effect)], injected: &Injected) -> Result<(), String> {
    for (index, stage) in stages.iter().enumerate() {
        let once = usize::from(stage.act != Act::Nothing);
        let again = usize::from(injected.twice == Some(index) && !stage.act.keyed());
        let allowed = match &injected.end {
            None => once + again..=once + again,
            Some(end) => match end.stage {
                Some(at) if index < at => once..=once,
                Some(at) if index == at => 0..=once,
                Some(_) | None => 0..=0,
            },
        };
        let count = acts.iter().filter(|a| a.1 == index).count();
        if !allowed.contains(&count) {
            return Err(format!("{} was done {count} times, not {allowed:?}", stage.name));
        }
    }
    Ok(())
}

fn nothing_after_the_end(acts: &[(usize, usize, &Effect)], injected: &Injected) -> Result<(), String> {
    let Some(end) = &injected.end else { return Ok(()) };
    let late = acts.iter().find(|(at, stage, _)| *at >= end.effects && !(end.in_flight && end.stage == Some(*stage)));
    match late {
        Some((_, _, e)) => Err(format!("{} was begun after the end was settled", step_of(e))),
        None => Ok(()),
    }
}

/// Undone is every step that can be and was begun, last first, after everything else; and nothing on success.
fn unwound(
    stages: &[Stage],
    effects: &[Effect],
    acts: &[(usize, usize, &Effect)],
    injected: &Injected,
) -> Result<(), String> {
    let undos: Vec<(usize, &Effect)> = effects.iter().enumerate().filter(|(_, e)| e.kind == UNDO).collect();
    let begun = injected.end.as_ref().and_then(|e| e.stage);
    let up_to = |last: usize| -> Vec<&str> {
        let undone = |(index, s): &(usize, &Stage)| s.act.undone() && injected.undo_refused != Some(*index);
        stages.iter().enumerate().take(last + 1).rev().filter(undone).map(|(_, s)| s.name).collect()
    };
    let expected = begun.map(up_to).unwrap_or_default();
    let live = injected.end.as_ref().is_some_and(|e| e.live);
    let mut seen: Vec<&str> = undos.iter().map(|(_, e)| step_of(e)).collect();
    // at least once is the contract, so a repetition next to the first is none of ours
    seen.dedup();
    let next = begun.filter(|_| live).map(|at| up_to(at + 1));
    if seen != expected && Some(&seen) != next.as_ref() {
        return Err(format!("undone were {seen:?}, not {expected:?}"));
    }
    let last_act = acts.last().map_or(0, |a| a.0);
    match undos.iter().find(|(at, _)| *at < last_act) {
        Some((_, e)) => Err(format!("{} was undone before the last step was done", step_of(e))),
        None => Ok(()),
    }
}

/// What a holder sent never takes effect after its successor's.
fn fences_rise(effects: &[Effect], kinds: &[&str]) -> Result<(), String> {
    let sent = |e: &&Effect| {
        let kind = e.kind.as_str();
        kinds.contains(&kind) || kind == UNDO || STOPS.contains(&kind)
    };
    let fences: Vec<(u64, u64)> = effects.iter().filter(sent).map(fence_of).collect();
    if fences.is_sorted() { Ok(()) } else { Err(format!("an old fence acted after a new one: {fences:?}")) }
}

/// What the machine must be like in the end, beyond what its effects add up to.
pub fn at_rest(stages: &[Stage], world: &World, injected: &Injected) -> Result<(), String> {
    let has = |act: Act| stages.iter().any(|s| s.act == act);
    if injected.ending() == Ending::Succeeded {
        let checks = [
            ("up, unless it was to be powered off", world.up != has(Act::PowerOff)),
            ("installed", !has(Act::Install) || world.image.as_deref() == Some("ubuntu-24.04")),
            ("booted", !has(Act::Reset) || world.boots > 1),
            ("in its cluster", !has(Act::Join) || world.member.as_deref() == Some("prod")),
            ("returned", !has(Act::OpenReturn) || world.return_open),
            ("reconfigured", !has(Act::ApplyNetwork) || world.network.get("mtu").is_some_and(|v| v == "9000")),
            ("through with its commands", world.commands.values().all(|c| *c == Some(0))),
        ];
        if let Some((what, _)) = checks.iter().find(|(_, holds)| !holds) {
            return Err(format!("it is not {what}: {world:?}"));
        }
    }
    let under_way = world.installing.is_some() || world.commands.values().any(Option::is_none);
    if under_way && !injected.stop_refused {
        return Err("something is still under way".to_owned());
    }
    if injected.ending() != Ending::Succeeded && injected.undo_refused.is_none() && world.boot_override.is_some() {
        return Err(format!("it still boots from {:?}", world.boot_override));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: [Stage; 3] = [
        Stage { name: "boot", act: Act::SetBoot },
        Stage { name: "reset", act: Act::Reset },
        Stage { name: "run", act: Act::Command },
    ];

    /// Effect, step and fence.
    type Line = (&'static str, &'static str, &'static str);

    fn journal(lines: &[Line]) -> Vec<Effect> {
        let effect = |(kind, step, fence): &Line| Effect {
            number: 0,
            at_micros: 0,
            machine: "m".into(),
            operation: format!("exe_1.{step}.1"),
            fence: (*fence).into(),
            kind: (*kind).into(),
            detail: serde_json::json!({"mode": "PXE"}),
        };
        let mut effects: Vec<Effect> = lines.iter().map(effect).collect();
        (0..).zip(&mut effects).for_each(|(n, e)| e.number = n);
        effects
    }

    const GOOD: [Line; 5] = [
        ("netboot", "boot", "1.1"),
        ("reset", "reset", "1.1"),
        ("booted", "reset", "1.1"),
        ("exec_started", "run", "1.2"),
        ("exec_finished", "run", "1.2"),
    ];

    fn failed(stage: usize, effects: usize) -> Injected {
        let end = End { ending: Ending::Failed, effects, stage: Some(stage), in_flight: false, live: false };
        Injected { end: Some(end), ..Injected::default() }
    }

    #[test]
    fn a_good_journal_passes_and_each_bad_one_is_told_apart() {
        assert_eq!(judge(&STAGES, &journal(&GOOD), &Injected::default()), Ok(()));
        let verdict = |change: &dyn Fn(&mut Vec<Line>), injected: &Injected| {
            let mut lines = GOOD.to_vec();
            change(&mut lines);
            judge(&STAGES, &journal(&lines), injected).expect_err("a bad journal")
        };
        let fine = Injected::default();
        assert!(verdict(&|l| l.insert(1, GOOD[1]), &fine).contains("done 2 times"));
        assert!(verdict(&|l| l.truncate(1), &fine).contains("done 0 times"));
        assert!(verdict(&|l| l.swap(0, 1), &fine).contains("was done after"));
        assert!(verdict(&|l| l.push(("clear_netboot", "boot", "1.2")), &fine).contains("undone were"));
        assert!(verdict(&|l| l[3].2 = "1.0", &fine).contains("old fence"));
        assert!(verdict(&|l| l[1].1 = "other", &fine).contains("nobody asked"));
        assert!(verdict(&|l| l.truncate(3), &failed(1, 3)).contains("undone were []"));
        assert!(verdict(&|_| (), &failed(1, 3)).contains("done 1 times"));
        assert!(verdict(&|l| l.truncate(3), &failed(1, 1)).contains("begun after the end"));
    }

    #[test]
    fn undoing_twice_is_fine_and_leaving_a_command_is_not() {
        let mut lines = GOOD[..4].to_vec();
        lines.extend([("clear_netboot", "boot", "1.3"); 2]);
        assert_eq!(judge(&STAGES, &journal(&lines), &failed(2, 4)), Ok(()));
        let world = World::of(&journal(&lines));
        assert_eq!(at_rest(&STAGES, &world, &failed(2, 4)), Err("something is still under way".to_owned()));
        lines.push(("exec_killed", "run", "1.3"));
        assert_eq!(at_rest(&STAGES, &World::of(&journal(&lines)), &failed(2, 4)), Ok(()));
        let half = World::of(&journal(&lines[..1]));
        assert!(at_rest(&STAGES, &half, &failed(0, 1)).is_err_and(|e| e.contains("still boots")));
        assert!(at_rest(&STAGES, &half, &Injected::default()).is_err_and(|e| e.contains("not booted")));
    }
}
