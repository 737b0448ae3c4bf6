//! Kinds of jobs and their stages, held against what is documented of them.

use super::*;

#[test]
fn every_kind_begins_at_a_checkpoint_and_names_a_stage_once() {
    for kind in JobKind::ALL {
        let stages = kind.stages();
        assert!(stages[0].is_checkpoint(kind), "{kind}");
        for (i, stage) in stages.iter().enumerate() {
            assert!(!stages[..i].contains(stage), "{kind}: {stage} twice");
            assert_eq!(JobStage::parse(stage.as_str()), Some(*stage));
        }
        assert_eq!(JobKind::parse(kind.as_str(), kind.mode(), kind.ground().as_str()), Some(kind));
    }
}

#[test]
fn nothing_returns_to_service_on_a_persons_word_alone() {
    for kind in JobKind::ALL.into_iter().filter(|k| !k.removes()) {
        for stage in [JobStage::CleanupStorage, JobStage::ScrubGpu, JobStage::ValidateCleanNode] {
            assert_eq!(stage.adoption(kind), Adoption::Never, "{kind} {stage}");
        }
    }
}

#[test]
fn the_sixteen_stages_of_an_onboarding_and_the_thirteen_of_a_decommission_are_there_in_their_order() {
    let names = |kind: JobKind| kind.stages().iter().map(|stage| stage.as_str()).collect::<Vec<_>>();
    let documented = [
        "load_site_config",
        "resolve_power_credentials",
        "create_or_find_in_maas",
        "commission_node",
        "wait_for_ready",
        "configure_storage",
        "apply_roce_phase2",
        "ensure_pxe_interface_auto",
        "render_cloud_init",
        "deploy_via_maas",
        "wait_for_deployed",
        "classify_deploy_failure",
        "recover_for_datasource_retry",
        "ensure_hardware_sync_configured",
        "wait_for_hardware_sync_healthy",
        "wait_for_agent_enrollment",
    ];
    assert_eq!(names(JobKind::Onboarding(Ground::Maas))[..16], documented);
    let documented = [
        "disable_node",
        "force_release_allocations",
        "drain_node",
        "cleanup_storage",
        "scrub_gpu",
        "validate_clean_node",
        "load_site_config",
        "release_maas_node",
        "power_off_maas_node",
        "retire_gpuaas_node",
        "remove_gpuaas_node_record",
        "cleanup_secrets",
        "remove_maas_record",
    ];
    assert_eq!(names(JobKind::Decommission(Mode::FullDecommission(Ground::Maas))), documented);
}

#[test]
fn a_machine_of_our_own_is_installed_by_a_run_between_its_drain_and_its_new_agent() {
    let kind = JobKind::Decommission(Mode::Reimage(Ground::Boot));
    let at = |stage| kind.stages().iter().position(|s| *s == stage).expect("one of its stages");
    let way = [
        JobStage::DrainNode,
        JobStage::RetireGpuaasNode,
        JobStage::RepaveMachine,
        JobStage::WaitForAgentEnrollment,
        JobStage::ValidateCleanNode,
        JobStage::CheckHealth,
    ];
    assert!(way.map(at).is_sorted());
    assert_eq!(kind.to_string(), "decommission (reimage, boot)");
    assert_eq!(Mode::of("reimage", Ground::Bundle), None, "nobody installs it");
    assert_eq!(Mode::of("full_decommission", Ground::Boot), Some(Mode::FullDecommission(Ground::Bundle)));
}

#[test]
fn every_mode_is_found_by_its_name_and_ground() {
    for mode in Mode::ALL {
        let ground = JobKind::Decommission(mode).ground();
        assert_eq!(Mode::of(mode.as_str(), ground), Some(mode));
    }
    assert_eq!(Mode::of("melt", Ground::Maas), None);
}
