//! `millwright machine inspect|power|boot|…`: work on one machine's hardware, through its management controller.

use super::ClientOptions;
use super::connect::{Clients, call, connect};
use super::dry_run::DryRun;
use super::exit::{CliError, Exit};
use super::hardware_sheet;
use super::json::Wire;
use super::output::{self, Format, Screen, note};
use super::text::{clean, now, pairs, parse_duration, parse_pair, show_pairs};
use clap::{Args, Subcommand, ValueEnum};
use proto::millwright::v1::{
    EjectMediaRequest, GetBiosRequest, GetConsoleInfoRequest, GetHardwareTaskRequest, GetMediaRequest, HardwareChange,
    HardwareTask, IdentifyMachineRequest, InsertMediaRequest, InspectMachineRequest, ListHardwareEventsRequest,
    ListSensorsRequest, RepinMachineRequest, RotateBmcPasswordRequest, SetBiosRequest, SetBootRequest, SetPowerRequest,
    UpdateFirmwareRequest,
};
use std::time::Duration;
use tokio::time::Instant;

/// Between looks at a task that goes on.
const TASK_PAUSE: Duration = Duration::from_secs(2);

#[derive(Subcommand)]
pub enum HardwareCommand {
    /// Ask a machine's hardware what it is made of and how it is
    #[command(after_help = "Examples:
  millwright machine inspect m-1
  millwright machine inspect m-1 -o wide            (every part by itself)
  millwright machine inspect m-1 -o json | jq .nics

The machine's management controller is asked now, which can take a while. What it does not tell is left out.")]
    Inspect {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Switch a machine's power
    #[command(after_help = "Examples:
  millwright machine power m-1 on
  millwright machine power m-1 off                  (asks its system to shut down)
  millwright machine power m-1 off --force          (takes the power away)
  millwright machine power m-1 restart --reason 'hangs, ticket 4711'
  millwright machine power m-1 cycle --dry-run

A machine that a run holds is refused. --dry-run prints the request and sends nothing.")]
    Power {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        /// What to do
        #[arg(value_name = "ACTION", value_enum)]
        action: Power,
        /// Do not ask the system on it first
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        how: How,
    },
    /// Set what a machine boots from next
    #[command(after_help = "Examples:
  millwright machine boot m-1 pxe
  millwright machine boot m-1 disk --persistent
  millwright machine boot m-1 none                  (as its BIOS decides)")]
    Boot {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        /// From what
        #[arg(value_name = "FROM", value_enum, ignore_case = true)]
        from: Boot,
        /// For all boots, not only the next
        #[arg(long)]
        persistent: bool,
        #[command(flatten)]
        how: How,
    },
    /// How to get at a machine's console
    #[command(after_help = "Example:\n  millwright machine console-info m-1")]
    ConsoleInfo {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// What a machine's management controller has in its own log, newest first
    #[command(after_help = "Examples:
  millwright machine bmc-log m-1
  millwright machine bmc-log m-1 --limit 500 -o json

Its times are by the controller's clock. What Millwright itself saw and did: millwright machine watch m-1 --no-follow")]
    BmcLog {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..=1000))]
        limit: i32,
    },
    /// What a machine's sensors read now
    #[command(after_help = "Example:\n  millwright machine sensors m-1")]
    Sensors {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Light the lamp by which a person finds a machine
    #[command(after_help = "Examples:\n  millwright machine identify m-1\n  millwright machine identify m-1 --off")]
    Identify {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        /// Put it out
        #[arg(long)]
        off: bool,
        /// Print what would be sent, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// What is in a machine's virtual drive; insert an image, or eject it
    #[command(after_help = "Examples:
  millwright machine media m-1
  millwright machine media m-1 insert https://images.example/rescue.iso
  millwright machine media m-1 eject")]
    Media {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        /// What to do; without it, tell what is in
        #[arg(value_name = "ACTION", value_enum)]
        action: Option<Media>,
        /// Of the image to insert; the controller fetches it
        #[arg(value_name = "URL")]
        url: Option<String>,
        #[command(flatten)]
        how: How,
    },
    /// A machine's BIOS attributes; set some of them
    #[command(after_help = "Examples:
  millwright machine bios m-1
  millwright machine bios m-1 set SecureBoot=Enabled Hyperthreading=Disabled

What is set takes effect with the next boot, and is shown as pending until then.")]
    Bios {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        /// What to do; without it, tell what is in force
        #[arg(value_name = "ACTION", value_enum)]
        action: Option<Bios>,
        /// Attributes to set; the others stay
        #[arg(value_name = "KEY=VALUE", value_parser = parse_pair)]
        attributes: Vec<(String, String)>,
        #[command(flatten)]
        how: How,
    },
    /// A machine's firmware; update it, or look at an update that is under way
    #[command(after_help = "Examples:
  millwright machine firmware m-1
  millwright machine firmware m-1 update https://images.example/bios-2.7.bin
  millwright machine firmware m-1 update https://images.example/bmc.bin --target BMC --no-wait
  millwright machine firmware m-1 task /redfish/v1/TaskService/Tasks/7

An update is followed to its end. A controller that updates itself is silent for a while: that is waited out, up to
--timeout; the update goes on without anybody watching.")]
    Firmware {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        /// What to do; without it, tell what is installed
        #[arg(value_name = "ACTION", value_enum)]
        action: Option<Firmware>,
        /// Of the image to install, which the controller fetches; or the name of the task
        #[arg(value_name = "URL|TASK")]
        what: Option<String>,
        /// Only this part, by its name in the inventory; may be repeated
        #[arg(long = "target", value_name = "NAME")]
        targets: Vec<String>,
        /// Do not follow it
        #[arg(long)]
        no_wait: bool,
        /// How long to follow it at most
        #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
        timeout: Duration,
        #[command(flatten)]
        how: How,
    },
    /// Give a machine's controller a new password, kept under the same credential; nobody sees it
    #[command(after_help = "Example:\n  millwright machine rotate-password m-1 --reason 'somebody left'")]
    RotatePassword {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        how: How,
    },
    /// Accept a certificate or host key that was replaced on purpose: the next contact pins what it finds
    #[command(after_help = "Example:\n  millwright machine repin m-1 --reason 'new mainboard, ticket 4711'")]
    Repin {
        /// The machine's id
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        how: How,
    },
}

/// Beside what is done.
#[derive(Args)]
pub struct How {
    /// Why; kept in the audit
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Power {
    On,
    #[value(alias = "graceful-off")]
    Off,
    ForceOff,
    #[value(alias = "graceful-restart")]
    Restart,
    ForceRestart,
    Cycle,
}

impl Power {
    /// As the API spells it.
    fn word(self, force: bool) -> Result<&'static str, CliError> {
        Ok(match (self, force) {
            (Power::On, false) => "on",
            (Power::Off, false) => "graceful-off",
            (Power::Off | Power::ForceOff, true) | (Power::ForceOff, false) => "force-off",
            (Power::Restart, false) => "graceful-restart",
            (Power::Restart | Power::ForceRestart, true) | (Power::ForceRestart, false) => "force-restart",
            (Power::Cycle, _) => "cycle",
            (Power::On, true) => return Err(CliError::usage("--force is for off and restart")),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Boot {
    Pxe,
    Http,
    Disk,
    Cd,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Media {
    Insert,
    Eject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Bios {
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Firmware {
    Update,
    Task,
}

/// Sends what changes something, or tells what would be sent.
macro_rules! change {
    ($options:expr, $dry_run:expr, $method:ident, $name:literal, $request:expr) => {{
        let (request, options) = ($request, $options);
        if $dry_run {
            return trial(
                concat!("millwright.v1.HardwareService/", $name),
                &request.machine_id.clone(),
                &request,
                options,
            );
        }
        let mut hardware = connect(options).await?.hardware;
        changed(options, &call(hardware.$method(request)).await?)
    }};
}

pub fn trial<T: Wire>(name: &'static str, id: &str, request: &T, options: &ClientOptions) -> Result<(), CliError> {
    DryRun::new(name, id, request)?.print(options.output)
}

/// One line for people, the answer for scripts.
pub fn changed(options: &ClientOptions, change: &HardwareChange) -> Result<(), CliError> {
    output::one(options.output, change, &change.machine_id, |change| vec![line(change)])
}

fn line(change: &HardwareChange) -> String {
    let task = if change.task.is_empty() { String::new() } else { format!(", task {}", clean(&change.task)) };
    let state = match change.state.as_str() {
        "accepted" => "accepted, and on its way",
        state => state,
    };
    format!("{} {}: {state}{task}", clean(&change.machine_id), clean(&change.what))
}

pub async fn execute(command: HardwareCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        HardwareCommand::Inspect { id } => {
            let mut hardware = connect(options).await?.hardware;
            let found = call(hardware.inspect_machine(InspectMachineRequest { machine_id: id })).await?;
            let wide = options.output == Format::Wide;
            output::one(options.output, &found, &found.machine_id, |found| {
                hardware_sheet::sheet(found, wide, Screen::stdout(), now())
            })
        }
        HardwareCommand::Power { id, action, force, how } => {
            let action = action.word(force)?.to_owned();
            let request = SetPowerRequest { machine_id: id, action, reason: how.reason };
            change!(options, how.dry_run, set_power, "SetPower", request)
        }
        HardwareCommand::Boot { id, from, persistent, how } => {
            let mode = match from {
                Boot::Pxe => "PXE",
                Boot::Http => "HTTP",
                Boot::Disk => "DISK",
                Boot::Cd => "CD",
                Boot::None => "",
            };
            let request = SetBootRequest { machine_id: id, mode: mode.to_owned(), persistent, reason: how.reason };
            change!(options, how.dry_run, set_boot, "SetBoot", request)
        }
        HardwareCommand::ConsoleInfo { id } => {
            let mut hardware = connect(options).await?.hardware;
            let found = call(hardware.get_console_info(GetConsoleInfoRequest { machine_id: id })).await?;
            output::one(options.output, &found, &found.machine_id, |found| {
                hardware_sheet::consoles(&found.machine_id, &found.consoles, Screen::stdout(), now())
            })?;
            if options.output.is_for_people() && found.consoles.is_empty() {
                note("its controller offers no console");
            }
            Ok(())
        }
        HardwareCommand::BmcLog { id, limit } => {
            let mut hardware = connect(options).await?.hardware;
            let request = ListHardwareEventsRequest { machine_id: id, limit };
            let found = call(hardware.list_hardware_events(request)).await?.events;
            let mut found = Some(found);
            output::list(options.output, "", None, async |_, _| Ok((found.take().unwrap_or_default(), String::new())))
                .await
        }
        HardwareCommand::Sensors { id } => {
            let mut hardware = connect(options).await?.hardware;
            let found = call(hardware.list_sensors(ListSensorsRequest { machine_id: id })).await?.sensors;
            let mut found = Some(found);
            output::list(options.output, "", None, async |_, _| Ok((found.take().unwrap_or_default(), String::new())))
                .await
        }
        HardwareCommand::Identify { id, off, dry_run } => {
            let request = IdentifyMachineRequest { machine_id: id, on: !off };
            change!(options, dry_run, identify_machine, "IdentifyMachine", request)
        }
        HardwareCommand::Media { id, action, url, how } => media(id, action, url, how, options).await,
        HardwareCommand::Bios { id, action, attributes, how } => bios(id, action, attributes, how, options).await,
        HardwareCommand::Firmware { id, action, what, targets, no_wait, timeout, how } => match (action, what) {
            (None, _) => {
                let mut hardware = connect(options).await?.hardware;
                let found = call(hardware.inspect_machine(InspectMachineRequest { machine_id: id })).await?;
                output::one(options.output, &found, &found.machine_id, |found| {
                    hardware_sheet::firmware(found, Screen::stdout(), now())
                })
            }
            (Some(_), None) => Err(CliError::usage("tell the image's URL after update, or the task's name after task")),
            (Some(Firmware::Task), Some(task)) => {
                let clients = connect(options).await?;
                let wait = (!no_wait).then_some(timeout);
                follow_task(&clients, id, task, wait, options.output).await
            }
            (Some(Firmware::Update), Some(image_url)) => {
                let request = UpdateFirmwareRequest { machine_id: id, image_url, targets, reason: how.reason };
                if how.dry_run {
                    let name = "millwright.v1.HardwareService/UpdateFirmware";
                    return trial(name, &request.machine_id.clone(), &request, options);
                }
                let clients = connect(options).await?;
                let begun = call(clients.hardware.clone().update_firmware(request)).await?;
                if no_wait || begun.task.is_empty() {
                    return changed(options, &begun);
                }
                if options.output.is_for_people() {
                    note(&line(&begun));
                }
                follow_task(&clients, begun.machine_id, begun.task, Some(timeout), options.output).await
            }
        },
        HardwareCommand::RotatePassword { id, how } => {
            let request = RotateBmcPasswordRequest { machine_id: id, reason: how.reason };
            change!(options, how.dry_run, rotate_bmc_password, "RotateBmcPassword", request)
        }
        HardwareCommand::Repin { id, how } => {
            let request = RepinMachineRequest { machine_id: id, reason: how.reason };
            change!(options, how.dry_run, repin_machine, "RepinMachine", request)
        }
    }
}

async fn media(
    id: String,
    action: Option<Media>,
    url: Option<String>,
    how: How,
    options: &ClientOptions,
) -> Result<(), CliError> {
    match (action, url) {
        (None, _) => {
            let mut hardware = connect(options).await?.hardware;
            let found = call(hardware.get_media(GetMediaRequest { machine_id: id })).await?;
            output::one(options.output, &found, &found.machine_id, |found| {
                vec![if found.url.is_empty() { "nothing is in".to_owned() } else { clean(&found.url) }]
            })
        }
        (Some(Media::Insert), Some(url)) => {
            let request = InsertMediaRequest { machine_id: id, url, reason: how.reason };
            change!(options, how.dry_run, insert_media, "InsertMedia", request)
        }
        (Some(Media::Insert), None) => Err(CliError::usage("insert needs the image's URL")),
        (Some(Media::Eject), None) => {
            let request = EjectMediaRequest { machine_id: id };
            change!(options, how.dry_run, eject_media, "EjectMedia", request)
        }
        (Some(Media::Eject), Some(_)) => Err(CliError::usage("eject takes no URL")),
    }
}

async fn bios(
    id: String,
    action: Option<Bios>,
    attributes: Vec<(String, String)>,
    how: How,
    options: &ClientOptions,
) -> Result<(), CliError> {
    match action {
        None => {
            let mut hardware = connect(options).await?.hardware;
            let found = call(hardware.get_bios(GetBiosRequest { machine_id: id })).await?;
            output::one(options.output, &found, &found.machine_id, |found| {
                let mut lines: Vec<String> =
                    found.current.iter().map(|(key, value)| clean(&format!("{key}={value}"))).collect();
                if !found.pending.is_empty() {
                    lines.push(format!("with the next boot: {}", clean(&show_pairs(&found.pending))));
                }
                lines
            })
        }
        Some(Bios::Set) if attributes.is_empty() => Err(CliError::usage("set needs at least one KEY=VALUE")),
        Some(Bios::Set) => {
            let attributes = pairs(&attributes).map_err(CliError::usage)?;
            let request = SetBiosRequest { machine_id: id, attributes, reason: how.reason };
            if how.dry_run {
                let name = "millwright.v1.HardwareService/SetBios";
                return trial(name, &request.machine_id.clone(), &veiled(request), options);
            }
            change!(options, how.dry_run, set_bios, "SetBios", request)
        }
    }
}

/// The request without the values, some of which are passwords.
fn veiled(mut request: SetBiosRequest) -> SetBiosRequest {
    request.attributes.values_mut().for_each(|value| "(not shown)".clone_into(value));
    request
}

/// Looks at a task until it ends, or once.
async fn follow_task(
    clients: &Clients,
    machine_id: String,
    task: String,
    wait: Option<Duration>,
    format: Format,
) -> Result<(), CliError> {
    let until = wait.map(|wait| Instant::now() + wait);
    let go_on = format!("millwright machine firmware {machine_id} task {task}");
    let mut said = String::new();
    loop {
        let request = GetHardwareTaskRequest { machine_id: machine_id.clone(), task: task.clone() };
        let looked = call(clients.hardware.clone().get_hardware_task(request)).await;
        let news = match looked {
            Ok(found) if found.state == "running" && until.is_some() => progress(&found),
            Ok(found) if found.state == "failed" => {
                let message =
                    format!("{} of {} failed: {}", clean(&found.task), found.machine_id, clean(&found.message));
                return Err(CliError::failed(message).hint(format!("millwright machine bmc-log {machine_id}")));
            }
            Ok(found) => {
                return output::one(format, &found, &found.machine_id, |found| {
                    vec![format!("{} {}: {}", found.machine_id, clean(&found.task), progress(found))]
                });
            }
            // a controller that updates itself does not answer for a while
            Err(e) if e.exit() == Exit::Unreachable && until.is_some() => {
                format!("no answer: {}", clean(&e.to_string()))
            }
            Err(e) => return Err(e),
        };
        if format.is_for_people() && news != said {
            note(&news);
            said = news;
        }
        if until.is_some_and(|until| Instant::now() + TASK_PAUSE > until) {
            return Err(
                CliError::failed(format!("{} has not ended yet; it goes on by itself", clean(&task))).hint(go_on)
            );
        }
        tokio::time::sleep(TASK_PAUSE).await;
    }
}

fn progress(task: &HardwareTask) -> String {
    let percent = task.percent.map(|percent| format!(" {percent}%")).unwrap_or_default();
    let message = if task.message.is_empty() { String::new() } else { format!(", {}", clean(&task.message)) };
    format!("{}{percent}{message}", clean(&task.state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Top {
        #[command(subcommand)]
        command: HardwareCommand,
    }

    fn power(words: &[&str]) -> Result<&'static str, CliError> {
        let words = ["x", "power", "m-1"].iter().chain(words);
        match Top::try_parse_from(words).map_err(|e| CliError::usage(e.to_string()))?.command {
            HardwareCommand::Power { action, force, .. } => action.word(force),
            _ => Err(CliError::failed("another command")),
        }
    }

    /// Every action of the API can be said, and people's words are the gentle ones.
    #[test]
    fn words_for_power_are_the_apis() {
        for (words, action) in [
            (&["on"][..], "on"),
            (&["off"], "graceful-off"),
            (&["off", "--force"], "force-off"),
            (&["restart"], "graceful-restart"),
            (&["restart", "--force"], "force-restart"),
        ] {
            assert_eq!(power(words).ok(), Some(action), "{words:?}");
        }
        for action in domain::hardware::PowerAction::ALL {
            assert_eq!(power(&[action.as_str()]).ok(), Some(action.as_str()));
        }
        assert!(power(&["on", "--force"]).is_err());
    }

    #[test]
    fn a_change_is_told_in_one_line() {
        let change = |state: &str, task: &str| HardwareChange {
            machine_id: "m-1".into(),
            what: "power off".into(),
            state: state.into(),
            task: task.into(),
        };
        assert_eq!(line(&change("done", "")), "m-1 power off: done");
        assert_eq!(line(&change("accepted", "7")), "m-1 power off: accepted, and on its way, task 7");
    }
}
