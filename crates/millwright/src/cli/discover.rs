//! `machine register --discover`: the hardware says who it is, and fills in what was not given.

use super::connect::{Clients, call};
use super::exit::CliError;
use super::hardware_sheet;
use super::output::{Format, Screen, note};
use super::text::now;
use proto::baremetal::v1::{Machine, MachineSpec};
use proto::millwright::v1::DiscoverHardwareRequest;

/// Asks the hardware at the machine's BMC, shows what was found, and completes the machine with it.
pub async fn fill(clients: &Clients, machine: &mut Machine, format: Format) -> Result<(), CliError> {
    let spec = machine.spec.get_or_insert_default();
    let request = DiscoverHardwareRequest {
        bmc_endpoint: spec.bmc_endpoint.clone(),
        credentials_ref: spec.credentials_ref.clone(),
        provider: spec.provider.clone(),
    };
    let answer = call(clients.hardware.clone().discover_hardware(request)).await?;
    if format.is_for_people()
        && let Some(found) = &answer.description
    {
        note(&format!("found at {}:", spec.bmc_endpoint));
        for line in hardware_sheet::sheet(found, false, Screen::PLAIN, now()) {
            note(&format!("  {line}"));
        }
    }
    complete(spec, answer.machine.and_then(|machine| machine.spec).unwrap_or_default())
}

/// What was given stays, unless the hardware contradicts who it is said to be.
fn complete(given: &mut MachineSpec, found: MachineSpec) -> Result<(), CliError> {
    one("--serial", &mut given.serial_number, found.serial_number)?;
    one("--system-uuid", &mut given.system_uuid, found.system_uuid)?;
    if given.mac_addresses.is_empty() {
        given.mac_addresses = found.mac_addresses;
    }
    // the same endpoint, with the certificate that was seen there
    if found.bmc_endpoint.starts_with(given.bmc_endpoint.trim_end_matches('?')) {
        given.bmc_endpoint = found.bmc_endpoint;
    }
    for (own, found) in [
        (&mut given.provider, found.provider),
        (&mut given.ssh_endpoint, found.ssh_endpoint),
        (&mut given.location, found.location),
        (&mut given.rack, found.rack),
    ] {
        if own.is_empty() {
            *own = found;
        }
    }
    Ok(())
}

fn one(flag: &str, given: &mut String, found: String) -> Result<(), CliError> {
    if given.is_empty() {
        *given = found;
    } else if !found.is_empty() && !given.eq_ignore_ascii_case(&found) {
        return Err(CliError::refused(format!("{flag} {given} was given, but the hardware there says {found}"))
            .because("WRONG_MACHINE")
            .hint("check --bmc, or leave the flag out"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> MachineSpec {
        MachineSpec {
            serial_number: "S1".into(),
            system_uuid: "u-1".into(),
            mac_addresses: vec!["02:00:00:00:00:01".into()],
            provider: "dc".into(),
            bmc_endpoint: "https://10.0.0.9?tls=pin:ab".into(),
            ..MachineSpec::default()
        }
    }

    #[test]
    fn what_was_not_given_is_filled_in() {
        let mut spec = MachineSpec { rack: "r7".into(), serial_number: "s1".into(), ..MachineSpec::default() };
        spec.bmc_endpoint = "https://10.0.0.9".into();
        complete(&mut spec, found()).expect("fits");
        assert_eq!((spec.serial_number.as_str(), spec.system_uuid.as_str(), spec.rack.as_str()), ("s1", "u-1", "r7"));
        assert_eq!((spec.mac_addresses.len(), spec.provider.as_str()), (1, "dc"));
        assert_eq!(spec.bmc_endpoint, "https://10.0.0.9?tls=pin:ab", "what was seen there is what is trusted");
    }

    #[test]
    fn a_contradiction_stops_it_and_names_both() {
        let mut spec = MachineSpec { serial_number: "S2".into(), ..MachineSpec::default() };
        let error = complete(&mut spec, found()).expect_err("another machine");
        assert!(error.to_string().contains("S2") && error.to_string().contains("S1"), "{error}");
        assert_eq!(error.exit().code(), 4);
    }
}
