//! `docs/lifecycles.md`, rendered from the lifecycles themselves, and the verdict on every pair of state
//! and event.

use domain::boot_node::BootState;
use domain::condition::ConditionStatus;
use domain::credential::CredentialState;
use domain::finding::FindingState;
use domain::image::ImageState;
use domain::install_order::OrderState;
use domain::job::JobStatus;
use domain::lifecycle::{Edge, Owner, State, Verdict, judge, triggers};
use domain::machine::Phase;
use domain::node::NodeStatus;
use domain::pin::PinState;
use domain::run::RunPhase;
use domain::site::SiteState;
use domain::stage::{FailureClass, StageDecl, Unwind};
use domain::step::StepState;
use domain::task::TaskStatus;
use domain::token::TokenState;
use std::fmt::Write as _;

const HEAD: &str = "# Lifecycles

Generated from the tables in `crates/domain`; a test fails when this page is stale. To renew it:

    UPDATE_GOLDEN=1 cargo test -p millwright-testkit --test lifecycles

Every move goes through one function of the store, which checks the edge, its owner and its guard, and
leaves one row in the log. What is not listed here is refused, and the refusal names what is.
";

pub fn document() -> String {
    let mut page = HEAD.to_owned();
    section::<Phase>(
        &mut page,
        "Machine phase",
        "Operators move machines by `SetPhase`; the executor moves them where a run begins and ends. After a run that \
         succeeded, the phase follows from the steps that ran: a join gives IN_SERVICE, a repave without a join READY, \
         an RMA step RMA, anything else the phase before. A run that failed or was canceled leaves MAINTENANCE.",
    );
    section::<RunPhase>(&mut page, "Run", "A run that has ended never changes again.");
    section::<StepState>(
        &mut page,
        "Step",
        "A retry is a move from RUNNING to RUNNING, so that it is on record. At a cancel the step in flight becomes \
         FAILED with the message \"canceled\"; steps never reached stay WAITING.",
    );
    section::<TokenState>(
        &mut page,
        "Token",
        "Expiry is not a state: it is read off the clock. A revoked token never opens a door again.",
    );
    section::<CredentialState>(
        &mut page,
        "Credential",
        "What a credential holds is wiped when it is deleted; its row and its history stay. Sealing it again under another \
         key moves nothing.",
    );
    section::<PinState>(
        &mut page,
        "Pin",
        "One for each certificate or host key of a machine at an endpoint. A change of the endpoint forgets what was \
         learned at the old one, in the same transaction.",
    );
    section::<BootState>(
        &mut page,
        "Boot node",
        "Hardware as the network-boot service knows it. Operators approve, verify, reset and retire; the machine itself \
         reports what becomes of its installation; a run moves it in the name of whoever started that.",
    );
    section::<OrderState>(
        &mut page,
        "Install order",
        "One wish to install or to erase a boot node. Only an open one makes the boot service serve an installer.",
    );
    section::<ImageState>(
        &mut page,
        "Image",
        "A name for bytes that are kept by their digest. Adding another content under a name moves it from itself to itself.",
    );
    section::<SiteState>(
        &mut page,
        "Site",
        "One MAAS. A new description moves it from itself to itself; one that was removed keeps its row and its history.",
    );
    section::<FindingState>(
        &mut page,
        "Finding",
        "What does not belong together. It survives a look that failed, closes only on positive evidence or a person's \
         word, and is opened again when it is seen again.",
    );
    section::<ConditionStatus>(
        &mut page,
        "Observed condition",
        "One for each of Reachable, BMCReachable, Provisioned, InCustomerCluster, Drained and Degraded of a machine. What \
         nobody has looked at yet counts as False and is shown as never observed; a look that shows nothing new moves \
         nothing. NeedsIntervention is set by the executor and cleared by success or an operator, with the machine's \
         own moves; Reconciled is computed on read.",
    );
    section::<NodeStatus>(
        &mut page,
        "Node",
        "One enrolment of a machine into the GPU service. `draining` and `removing` are entered together with the job that \
         owns them, and left when it stands still; silence alone leads to `offline` and to nothing else; what is `deleted` \
         never comes back.",
    );
    section::<JobStatus>(
        &mut page,
        "Job",
        "The operator's view of a staged operation on a node. Each attempt is one execution of the engine; what stands \
         still has nothing done on its node. One of which a stage was adopted ends as `reconciled`.",
    );
    section::<TaskStatus>(
        &mut page,
        "Task",
        "One typed order to a node's agent. Handed out again it keeps its id and gets a higher fence; a word under an older \
         one is not taken.",
    );
    failures(&mut page);
    stages(&mut page);
    crate::job_tables::kinds(&mut page);
    crate::job_tables::actions(&mut page);
    page
}

fn section<S: State>(page: &mut String, title: &str, about: &str) {
    let _ = write!(page, "\n## {title}\n\n{about}\n\n| state | deadline |\n|---|---|\n");
    for state in S::ALL {
        let _ = writeln!(page, "| `{}` | {} |", state.as_str(), state.deadline().describe());
    }
    page.push_str("\n| from | to | trigger | owner | guard |\n|---|---|---|---|---|\n");
    for Edge { from, to, trigger, owner, guard } in S::edges() {
        let from = from.map_or("(new)", S::as_str);
        let _ = writeln!(page, "| `{from}` | `{}` | `{trigger}` | {owner} | {} |", to.as_str(), guard.describe());
    }
    page.push_str("\n```mermaid\nstateDiagram-v2\n");
    for Edge { from, to, trigger, owner, .. } in S::edges() {
        let from = from.map_or("[*]", S::as_str);
        let _ = writeln!(page, "    {from} --> {}: {trigger} ({owner})", to.as_str());
    }
    page.push_str("```\n");
}

fn failures(page: &mut String) {
    page.push_str(
        "\n## Failure classes\n\nThe class of a failure decides about retries; it can only lower a step's `max_retries`.\n\n\
         | class | retries at most | starting again may help |\n|---|---|---|\n",
    );
    for class in FailureClass::ALL {
        let budget = match class.retry_budget() {
            u32::MAX => "the step's own".to_owned(),
            n => n.to_string(),
        };
        let _ = writeln!(page, "| `{class}` | {budget} | {} |", if class.may_pass() { "yes" } else { "no" });
    }
}

fn stages(page: &mut String) {
    page.push_str(
        "\n## Steps of the built-in plans\n\n| plan | step | kind | time-out | retries | unwinding | destructive |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for plan in domain::plan_defaults::built_in_plans() {
        for step in &plan.steps {
            let decl = StageDecl::of_step(step);
            let unwind = match decl.unwind {
                Unwind::Undo => "undone".to_owned(),
                Unwind::RollForward => "stays as it is".to_owned(),
                Unwind::PointOfNoReturn(why) => format!("no return: {why}"),
            };
            let _ = writeln!(
                page,
                "| `{}` | `{}` | `{}` | {} s | {} | {unwind} | {} |",
                plan.id,
                step.name,
                step.kind.name(),
                decl.timeout.as_secs(),
                decl.max_retries,
                if decl.destructive { "yes" } else { "no" },
            );
        }
    }
}

/// One line for every state, event (trigger and target) and owner.
pub fn verdicts() -> String {
    let mut lines = String::new();
    product::<Phase>(&mut lines);
    product::<RunPhase>(&mut lines);
    product::<StepState>(&mut lines);
    product::<TokenState>(&mut lines);
    product::<CredentialState>(&mut lines);
    product::<PinState>(&mut lines);
    product::<BootState>(&mut lines);
    product::<OrderState>(&mut lines);
    product::<ImageState>(&mut lines);
    product::<SiteState>(&mut lines);
    product::<FindingState>(&mut lines);
    product::<ConditionStatus>(&mut lines);
    product::<NodeStatus>(&mut lines);
    product::<JobStatus>(&mut lines);
    product::<TaskStatus>(&mut lines);
    lines
}

fn product<S: State>(lines: &mut String) {
    let froms = std::iter::once(None).chain(S::ALL.iter().copied().map(Some));
    for from in froms {
        for trigger in triggers::<S>() {
            for to in S::ALL {
                for owner in Owner::ALL {
                    let verdict = match judge(from, *to, trigger, owner) {
                        Verdict::Allowed(guard) => format!("allowed ({})", guard.describe()),
                        Verdict::NotYours(owner) => format!("only by the {owner}"),
                        Verdict::Illegal => "illegal".to_owned(),
                    };
                    let from = from.map_or("(new)", S::as_str);
                    let _ =
                        writeln!(lines, "{} {from} --{trigger} by {owner}--> {}: {verdict}", S::ENTITY, to.as_str());
                }
            }
        }
    }
}
