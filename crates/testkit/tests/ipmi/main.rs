//! The IPMI adapter against OpenIPMI's simulator: each capability done, done twice, already done, timed out,
//! refused, missing; bad networks; and where the password is not.
//!
//! Verdicts come from the journal of the machine behind the simulator and from the datagrams that passed, not from
//! what the adapter says.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

mod does;
mod network;
mod refuses;
mod secrets;

use domain::endpoint::BmcEndpoint;
use domain::hardware::BootOverride;
use domain::plan::BootMode;
use ipmi::{Ipmi, Timeouts};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::ipmi_sim::{IpmiSim, endpoint_text};

/// Of sixteen bytes at most, and without quotes or spaces: its configuration takes no other.
const PASSWORD: &str = "s3cret-bmc$1";

/// Long, for a busy machine: only what never answers runs into them.
const PATIENT: Timeouts = Timeouts { presence: Duration::from_secs(10), call: Duration::from_secs(60) };
/// For what never answers.
const SHORT: Timeouts = Timeouts { presence: Duration::from_millis(400), call: Duration::from_secs(3) };

async fn sim() -> IpmiSim {
    IpmiSim::start(PASSWORD).await
}

fn adapter(sim: &IpmiSim) -> Ipmi {
    Ipmi::new(&sim.endpoint(), sim.login(), "rack-1", PATIENT)
}

fn at(sim: &IpmiSim, address: SocketAddr, timeouts: Timeouts) -> Ipmi {
    let endpoint = BmcEndpoint::parse(&endpoint_text(address)).expect("an endpoint");
    Ipmi::new(&endpoint, sim.login(), "rack-1", timeouts)
}

/// A program of a few lines that stands for ipmitool. Written by a child, so that no other test that starts one
/// just now holds it open for writing, which would keep it from being run.
fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("ipmitool");
    let write = "printf '#!/bin/sh\\n%s' \"$2\" > \"$1\" && chmod 755 \"$1\"";
    let done = Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(text).status().expect("sh runs");
    assert!(done.success(), "writing {}", path.display());
    path
}

fn boot(mode: BootMode, persistent: bool) -> BootOverride {
    BootOverride { mode, persistent }
}
