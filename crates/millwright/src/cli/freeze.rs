//! `millwright freeze` and `unfreeze`: the hand brake of all automation.

use super::ClientOptions;
use super::connect::{call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::output;
use super::text::{clean, now, relative, rfc3339};
use clap::Args;
use proto::millwright::v1::{FreezeRequest, FreezeState, GetFreezeRequest, UnfreezeRequest};

#[derive(Args)]
#[command(after_help = "Examples:
  millwright freeze --reason 'power work in hall 2'
  millwright freeze --show

While frozen nothing is claimed and no stage is entered.")]
pub struct FreezeArgs {
    /// Why; everybody who asks is told
    #[arg(long, value_name = "TEXT", required_unless_present = "show")]
    reason: Option<String>,
    /// Only tell whether automation is frozen
    #[arg(long, conflicts_with = "reason")]
    show: bool,
    /// Print what would be sent, and send nothing
    #[arg(long, conflicts_with = "show")]
    dry_run: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  millwright unfreeze")]
pub struct UnfreezeArgs {
    /// Print what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
}

pub async fn freeze(args: FreezeArgs, options: &ClientOptions) -> Result<(), CliError> {
    if let (Some(reason), true) = (&args.reason, args.dry_run) {
        let request = FreezeRequest { reason: reason.clone() };
        return DryRun::new("millwright.v1.EngineService/Freeze", "frozen", &request)?.print(options.output);
    }
    let mut engine = connect(options).await?.engine;
    let state = match args.reason {
        Some(reason) => call(engine.freeze(FreezeRequest { reason })).await?,
        None => call(engine.get_freeze(GetFreezeRequest {})).await?,
    };
    print(options, &state)
}

pub async fn unfreeze(args: UnfreezeArgs, options: &ClientOptions) -> Result<(), CliError> {
    if args.dry_run {
        let call = "millwright.v1.EngineService/Unfreeze";
        return DryRun::new(call, "running", &UnfreezeRequest {})?.print(options.output);
    }
    let mut engine = connect(options).await?.engine;
    print(options, &call(engine.unfreeze(UnfreezeRequest {})).await?)
}

fn print(options: &ClientOptions, state: &FreezeState) -> Result<(), CliError> {
    let name = if state.frozen { "frozen" } else { "running" };
    output::one(options.output, state, name, |state| vec![sentence(state, now())])
}

/// Whether it is frozen, since when, by whom and why.
pub fn sentence(state: &FreezeState, now: jiff::Timestamp) -> String {
    if !state.frozen {
        return "automation is running".to_owned();
    }
    let since = state.since.as_ref();
    let when = since.map(|_| format!(" since {} ({})", rfc3339(since), relative(since, now))).unwrap_or_default();
    let who = if state.by.is_empty() { String::new() } else { format!(" by {}", clean(&state.by)) };
    let why = if state.reason.is_empty() { String::new() } else { format!(": {}", clean(&state.reason)) };
    format!("automation is frozen{when}{who}{why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brake_says_who_pulled_it_and_why() {
        let now = jiff::Timestamp::from_second(120).expect("in range");
        let since = Some(prost_types::Timestamp { seconds: 0, nanos: 0 });
        let state = FreezeState { frozen: true, by: "admin".to_owned(), reason: "power work".to_owned(), since };
        assert_eq!(
            sentence(&state, now),
            "automation is frozen since 1970-01-01T00:00:00Z (2m ago) by admin: power work"
        );
        assert_eq!(sentence(&FreezeState::default(), now), "automation is running");
    }
}
