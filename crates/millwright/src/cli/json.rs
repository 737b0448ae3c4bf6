//! Messages as JSON and YAML, in the one form that REST has, too.

use super::exit::CliError;
pub use api::json::{is_choice, message_of};
use prost_reflect::{DynamicMessage, MessageDescriptor};
use proto::{baremetal::v1 as wire, millwright::v1 as engine};
use serde::ser::{Serialize, Serializer};

/// A message that can be printed: it knows its full name in the descriptors.
pub trait Wire: prost::Message {
    const NAME: &'static str;
}

macro_rules! wire {
    ($($message:ty => $name:literal,)+) => { $(impl Wire for $message { const NAME: &'static str = $name; })+ };
}

wire! {
    wire::Machine => "baremetal.v1.Machine",
    wire::Plan => "baremetal.v1.Plan",
    wire::Run => "baremetal.v1.Run",
    wire::RunEvent => "baremetal.v1.RunEvent",
    wire::LogChunk => "baremetal.v1.LogChunk",
    wire::Explanation => "baremetal.v1.Explanation",
    wire::RegisterMachineRequest => "baremetal.v1.RegisterMachineRequest",
    wire::SetPhaseRequest => "baremetal.v1.SetPhaseRequest",
    wire::CreatePlanRequest => "baremetal.v1.CreatePlanRequest",
    wire::StartRunRequest => "baremetal.v1.StartRunRequest",
    wire::CancelRunRequest => "baremetal.v1.CancelRunRequest",
    engine::Execution => "millwright.v1.Execution",
    engine::DescribeExecutionResponse => "millwright.v1.DescribeExecutionResponse",
    engine::FreezeState => "millwright.v1.FreezeState",
    engine::CancelExecutionRequest => "millwright.v1.CancelExecutionRequest",
    engine::TerminateExecutionRequest => "millwright.v1.TerminateExecutionRequest",
    engine::FreezeRequest => "millwright.v1.FreezeRequest",
    engine::UnfreezeRequest => "millwright.v1.UnfreezeRequest",
    engine::Token => "millwright.v1.Token",
    engine::Me => "millwright.v1.Me",
    engine::CreateTokenRequest => "millwright.v1.CreateTokenRequest",
    engine::CreateTokenResponse => "millwright.v1.CreateTokenResponse",
    engine::RevokeTokenRequest => "millwright.v1.RevokeTokenRequest",
    engine::Credential => "millwright.v1.Credential",
    engine::SetCredentialRequest => "millwright.v1.SetCredentialRequest",
    engine::DeleteCredentialRequest => "millwright.v1.DeleteCredentialRequest",
    engine::RotateSecretKeyRequest => "millwright.v1.RotateSecretKeyRequest",
    engine::RotateSecretKeyResponse => "millwright.v1.RotateSecretKeyResponse",
    engine::Event => "millwright.v1.Event",
    engine::AuditEntry => "millwright.v1.AuditEntry",
    engine::HardwareChange => "millwright.v1.HardwareChange",
    engine::HardwareDescription => "millwright.v1.HardwareDescription",
    engine::HardwareTask => "millwright.v1.HardwareTask",
    engine::HardwareEvent => "millwright.v1.HardwareEvent",
    engine::Sensor => "millwright.v1.Sensor",
    engine::ConsoleInfo => "millwright.v1.ConsoleInfo",
    engine::Media => "millwright.v1.Media",
    engine::Bios => "millwright.v1.Bios",
    engine::SetPowerRequest => "millwright.v1.SetPowerRequest",
    engine::SetBootRequest => "millwright.v1.SetBootRequest",
    engine::IdentifyMachineRequest => "millwright.v1.IdentifyMachineRequest",
    engine::InsertMediaRequest => "millwright.v1.InsertMediaRequest",
    engine::EjectMediaRequest => "millwright.v1.EjectMediaRequest",
    engine::SetBiosRequest => "millwright.v1.SetBiosRequest",
    engine::UpdateFirmwareRequest => "millwright.v1.UpdateFirmwareRequest",
    engine::RotateBmcPasswordRequest => "millwright.v1.RotateBmcPasswordRequest",
    engine::RepinMachineRequest => "millwright.v1.RepinMachineRequest",
    engine::ClusterHealth => "millwright.v1.ClusterHealth",
    engine::DrainPass => "millwright.v1.DrainPass",
    engine::CordonMachineRequest => "millwright.v1.CordonMachineRequest",
    engine::DrainMachineRequest => "millwright.v1.DrainMachineRequest",
    engine::BootNode => "millwright.v1.BootNode",
    engine::BootNodeMove => "millwright.v1.BootNodeMove",
    engine::BootNodeResult => "millwright.v1.BootNodeResult",
    engine::CreateBootNodeRequest => "millwright.v1.CreateBootNodeRequest",
    engine::UpdateBootNodeRequest => "millwright.v1.UpdateBootNodeRequest",
    engine::SetBootNodeStateRequest => "millwright.v1.SetBootNodeStateRequest",
    engine::SetBootNodeStatesRequest => "millwright.v1.SetBootNodeStatesRequest",
    engine::Workflow => "millwright.v1.Workflow",
    engine::Image => "millwright.v1.Image",
    engine::RemoveImageRequest => "millwright.v1.RemoveImageRequest",
    engine::Finding => "millwright.v1.Finding",
    engine::HandleFindingRequest => "millwright.v1.HandleFindingRequest",
    engine::Node => "millwright.v1.Node",
    engine::NodeRecord => "millwright.v1.NodeRecord",
    engine::IssuedNode => "millwright.v1.IssuedNode",
    engine::NodeActionResponse => "millwright.v1.NodeActionResponse",
    engine::OnboardNodeResponse => "millwright.v1.OnboardNodeResponse",
    engine::CreateNodeRequest => "millwright.v1.CreateNodeRequest",
    engine::StartOnboardingRequest => "millwright.v1.StartOnboardingRequest",
    engine::OrderTaskRequest => "millwright.v1.OrderTaskRequest",
    engine::CancelTaskRequest => "millwright.v1.CancelTaskRequest",
    engine::ActionResult => "millwright.v1.ActionResult",
    engine::Job => "millwright.v1.Job",
    engine::ActOnJobResponse => "millwright.v1.ActOnJobResponse",
    engine::Task => "millwright.v1.Task",
    engine::Site => "millwright.v1.Site",
    engine::SiteCheck => "millwright.v1.SiteCheck",
    engine::SiteMachine => "millwright.v1.SiteMachine",
    engine::CreateSiteRequest => "millwright.v1.CreateSiteRequest",
    engine::UpdateSiteRequest => "millwright.v1.UpdateSiteRequest",
    engine::RemoveSiteRequest => "millwright.v1.RemoveSiteRequest",
    engine::TaskPiece => "millwright.v1.TaskPiece",
    engine::DeleteClusterNodeRequest => "millwright.v1.DeleteClusterNodeRequest",
}

pub fn descriptor(name: &str) -> Result<MessageDescriptor, CliError> {
    api::json::descriptor(name).map_err(|e| CliError::failed(e.message))
}

/// A message ready to be serialized.
pub struct Shown(DynamicMessage);

pub fn shown<T: Wire>(message: &T) -> Result<Shown, CliError> {
    let dynamic = api::json::decode(descriptor(T::NAME)?, &message.encode_to_vec());
    dynamic.map(Shown).map_err(|e| CliError::failed(format!("printing a {}: {e}", T::NAME)))
}

impl Shown {
    /// On one line.
    pub fn line(&self) -> Result<String, CliError> {
        serde_json::to_string(self).map_err(|e| CliError::failed(format!("writing JSON: {e}")))
    }

    /// Over several lines, each but the first indented by `indent` spaces.
    pub fn pretty(&self, indent: usize) -> Result<String, CliError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| CliError::failed(format!("writing JSON: {e}")))?;
        Ok(text.replace('\n', &format!("\n{}", " ".repeat(indent))))
    }

    pub fn yaml(&self) -> Result<String, CliError> {
        serde_yaml_ng::to_string(self).map_err(|e| CliError::failed(format!("writing YAML: {e}")))
    }

    /// As one item of a YAML list.
    pub fn yaml_item(&self) -> Result<String, CliError> {
        serde_yaml_ng::to_string(&[self]).map_err(|e| CliError::failed(format!("writing YAML: {e}")))
    }
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        api::json::Json(&self.0).serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_in_the_descriptors() {
        for name in [
            wire::Machine::NAME,
            wire::Plan::NAME,
            wire::Run::NAME,
            wire::RunEvent::NAME,
            wire::LogChunk::NAME,
            engine::Execution::NAME,
            engine::DescribeExecutionResponse::NAME,
            engine::FreezeState::NAME,
        ] {
            assert!(descriptor(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn fields_stand_in_proto_order_with_defaults_and_nulls() {
        let labels = [("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())].into();
        let machine = wire::Machine { machine_id: "m-1".to_owned(), labels, version: 9, ..Default::default() };
        let line = shown(&machine).and_then(|s| s.line()).expect("JSON");
        assert_eq!(line, r#"{"machine_id":"m-1","labels":{"a":"1","b":"2"},"spec":null,"status":null,"version":"9"}"#);
    }

    #[test]
    fn of_a_choice_only_what_is_chosen_is_shown() {
        let reboot = wire::Reboot { mode: "bmc".to_owned() };
        let step = wire::Step {
            name: "boot".to_owned(),
            timeout_seconds: Some(60),
            max_retries: None,
            kind: Some(wire::step::Kind::Reboot(reboot)),
        };
        let plan = wire::Plan { plan_id: "p".to_owned(), steps: vec![step], ..Default::default() };
        let line = shown(&plan).and_then(|s| s.line()).expect("JSON");
        let steps = r#"[{"name":"boot","timeout_seconds":60,"max_retries":null,"reboot":{"mode":"bmc"}}]"#;
        assert_eq!(line, format!(r#"{{"plan_id":"p","display_name":"","steps":{steps}}}"#));
    }

    #[test]
    fn times_and_states_are_words() {
        let at = prost_types::Timestamp { seconds: 1_769_699_400, nanos: 0 };
        let run = wire::Run { created_at: Some(at), phase: 2, ..Default::default() };
        let line = shown(&run).and_then(|s| s.line()).expect("JSON");
        assert!(line.contains(r#""phase":"RUNNING""#), "{line}");
        assert!(line.contains(r#""created_at":"2026-01-29T15:10:00Z","started_at":null"#), "{line}");
    }
}
