//! The stages that ask a MAAS, declared as all others are.

use crate::job_stage::{Adoption, HOURS, JobStage, Row, Undo, Word};
use crate::maas::MaasClass;

/// A site that is down for an hour costs nobody a job.
const SITE_BACK_WITHIN: u64 = 2 * HOURS;
const IF_IT_GOES: Word = Word::WhereTheNodeGoes(Adoption::BySight);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaasStage {
    LoadSiteConfig,
    ResolvePowerCredentials,
    CreateOrFindInMaas,
    CommissionNode,
    WaitForReady,
    ConfigureStorage,
    ApplyRocePhase2,
    EnsurePxeInterfaceAuto,
    RenderCloudInit,
    DeployViaMaas,
    WaitForDeployed,
    ClassifyDeployFailure,
    RecoverForDatasourceRetry,
    EnsureHardwareSyncConfigured,
    WaitForHardwareSyncHealthy,
    ReleaseMaasNode,
    PowerOffMaasNode,
    RemoveMaasRecord,
}

impl MaasStage {
    pub const fn as_str(self) -> &'static str {
        JobStage::Maas(self).as_str()
    }

    /// What its machine may be seen as while a job stands still at it; empty: whatever it is.
    pub const fn expects(self) -> &'static [MaasClass] {
        use MaasClass::{Allocated, Commissioning, Deployed, Deploying, Failed, New, Ready, Transitional};
        match self {
            MaasStage::LoadSiteConfig | MaasStage::ResolvePowerCredentials | MaasStage::CreateOrFindInMaas => &[],
            MaasStage::CommissionNode | MaasStage::WaitForReady => &[New, Commissioning, Transitional, Ready, Failed],
            MaasStage::ConfigureStorage
            | MaasStage::ApplyRocePhase2
            | MaasStage::EnsurePxeInterfaceAuto
            | MaasStage::RenderCloudInit => &[Ready, Allocated],
            MaasStage::DeployViaMaas => &[Ready, Allocated, Deploying, Deployed, Failed],
            MaasStage::WaitForDeployed | MaasStage::ClassifyDeployFailure => &[Deploying, Deployed, Failed],
            MaasStage::RecoverForDatasourceRetry => &[Transitional, Ready, Deploying, Deployed, Failed],
            MaasStage::EnsureHardwareSyncConfigured | MaasStage::WaitForHardwareSyncHealthy => &[Deployed],
            MaasStage::ReleaseMaasNode => &[New, Ready, Allocated, Deployed, Transitional, Failed],
            MaasStage::PowerOffMaasNode | MaasStage::RemoveMaasRecord => &[New, Ready],
        }
    }

    pub(crate) const fn row(self) -> Row {
        match self {
            MaasStage::LoadSiteConfig => {
                Row::of_maas("load_site_config", SITE_BACK_WITHIN).checkpoint().word(IF_IT_GOES)
            }
            MaasStage::ResolvePowerCredentials => Row::of_maas("resolve_power_credentials", SITE_BACK_WITHIN),
            MaasStage::CreateOrFindInMaas => {
                Row::of_maas("create_or_find_in_maas", SITE_BACK_WITHIN).checkpoint().undo(Undo::RemoveCreated)
            }
            MaasStage::CommissionNode => {
                Row::of_maas("commission_node", SITE_BACK_WITHIN).checkpoint().undo(Undo::GiveBack)
            }
            // as long as MAAS itself may take for scripts and tests
            MaasStage::WaitForReady => Row::of_maas("wait_for_ready", 3 * HOURS).retries(0),
            MaasStage::ConfigureStorage => Row::of_maas("configure_storage", SITE_BACK_WITHIN).checkpoint(),
            MaasStage::ApplyRocePhase2 => Row::of_maas("apply_roce_phase2", SITE_BACK_WITHIN).word(Word::Anybodys),
            MaasStage::EnsurePxeInterfaceAuto => Row::of_maas("ensure_pxe_interface_auto", SITE_BACK_WITHIN),
            MaasStage::RenderCloudInit => {
                Row::of_maas("render_cloud_init", SITE_BACK_WITHIN).checkpoint().undo(Undo::WithdrawBundle)
            }
            MaasStage::DeployViaMaas => Row::of_maas("deploy_via_maas", SITE_BACK_WITHIN).undo(Undo::GiveBack),
            // MAAS gives up by itself after an hour
            MaasStage::WaitForDeployed => Row::of_maas("wait_for_deployed", 2 * HOURS).retries(0),
            MaasStage::ClassifyDeployFailure => Row::of_maas("classify_deploy_failure", SITE_BACK_WITHIN),
            MaasStage::RecoverForDatasourceRetry => {
                Row::of_maas("recover_for_datasource_retry", 8 * HOURS).undo(Undo::GiveBack).retries(0)
            }
            MaasStage::EnsureHardwareSyncConfigured => {
                Row::of_maas("ensure_hardware_sync_configured", SITE_BACK_WITHIN)
            }
            MaasStage::WaitForHardwareSyncHealthy => {
                Row::of_maas("wait_for_hardware_sync_healthy", 24 * HOURS).word(Word::Anybodys).retries(0)
            }
            // an erasure of every byte takes its time, and MAAS follows it
            MaasStage::ReleaseMaasNode => Row::of_maas("release_maas_node", 24 * HOURS)
                .checkpoint()
                .cleans()
                .word(IF_IT_GOES)
                .no_return("the system and what was on the disks are gone"),
            MaasStage::PowerOffMaasNode => Row::of_maas("power_off_maas_node", SITE_BACK_WITHIN).word(Word::Anybodys),
            MaasStage::RemoveMaasRecord => Row::of_maas("remove_maas_record", SITE_BACK_WITHIN)
                .checkpoint()
                .word(Word::Anybodys)
                .no_return("the record upstream is gone"),
        }
    }
}
