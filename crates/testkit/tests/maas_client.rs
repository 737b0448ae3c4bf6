//! Our client and our provider of kind `maas` against the MAAS in `testkit`, which was made from what a real one answers
//! and shares no code with them: the whole life of a machine, its traps passed by, and a repave through each answer that
//! can be lost. Its auditor reads its own log.
#![allow(clippy::expect_used, clippy::panic, reason = "a test throughout")]

use async_trait::async_trait;
use domain::credential::Credential;
use domain::maas::{DEPLOYED, MaasPower, NEW, READY};
use domain::mac::MacAddress;
use domain::machine::{Labels, MachineSpec};
use domain::plan::RebootMode;
use domain::site::{Erase, Layout, LinkMode, Site, SitePolicy, SiteState};
use domain::{ExecutionId, MachineId, Secret, Timestamp};
use maas::{Clients, MaasProvider, SiteSource};
use provider::{
    By, Changes, Commissioning, Deployment, ImageControl as _, Inspect as _, Maas, MaasAccess, MaasClients as _,
    NewLink, NewMachine, NextPart, Notes, Operation, PowerAccess, PowerControl as _, ProviderError, ProviderResult,
    Release, ResultKind, StorageLayout, Target, Which,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use testkit::keyring::MemoryKeyring;
use testkit::maas_sim::{Calls, MaasSim, Misbehaviour, Options, Racked, auditor};

const MAC: &str = "52:54:00:00:00:01";
const UUID: &str = "71bbe021-b592-5d7c-b96d-bc2c32d8912b";

async fn sim() -> MaasSim {
    let sim = MaasSim::start(Options::default()).await;
    sim.rack(Racked::new(MAC, "192.0.2.1").known_as(UUID, "SN-1"));
    sim
}

fn access(sim: &MaasSim) -> MaasAccess {
    MaasAccess { site: "oslo".into(), url: sim.url(), ca_pem: String::new(), key: Secret::new(sim.key()), calls_max: 4 }
}

fn new() -> NewMachine {
    let parameters = [("power_address", "192.0.2.1"), ("power_user", "u"), ("power_pass", "p")];
    NewMachine {
        architecture: "amd64/generic".into(),
        macs: vec![MacAddress::parse(MAC).expect("a MAC")],
        hostname: "one".into(),
        description: String::new(),
        power: PowerAccess {
            kind: "redfish".into(),
            parameters: parameters.map(|(name, value)| (name.to_owned(), Secret::new(value))).into(),
        },
        pool: String::new(),
        zone: String::new(),
    }
}

async fn status(maas: &dyn Maas, id: &str) -> i64 {
    maas.machine(id).await.expect("read").expect("there").status
}

async fn made(maas: &dyn Maas) -> String {
    let made = maas.create(&new()).await.expect("made");
    assert_eq!(made.status, NEW, "not commissioned by its creation");
    maas.commission(&made.system_id, &Commissioning::default()).await.expect("commissioned");
    assert_eq!(status(maas, &made.system_id).await, READY);
    made.system_id
}

fn deployment() -> Deployment {
    Deployment {
        series: "noble".into(),
        kernel: String::new(),
        user_data: Secret::new("#cloud-config\n"),
        hardware_sync: true,
        agent_name: "millwright".into(),
        comment: "c".into(),
    }
}

#[tokio::test]
async fn the_whole_life_of_a_machine() {
    let sim = sim().await;
    let maas = Clients::default().client(&access(&sim)).expect("a client");
    let maas = &*maas;
    let account = maas.account().await.expect("an account");
    assert_eq!((account.username.as_str(), account.is_admin), ("admin", true));
    let macs = Which::Macs(new().macs);
    assert!(maas.machines(&macs).await.expect("none").is_empty());
    let id = made(maas).await;
    let found = maas.machines(&macs).await.expect("one");
    assert_eq!(found.iter().map(|machine| machine.system_id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
    let machine = &found[0];
    assert_eq!((machine.serial.as_str(), machine.hardware_uuid.as_str()), ("SN-1", UUID));
    let again = maas.create(&new()).await.expect_err("the MAC is taken");
    assert_eq!(again.reason().as_str(), "IDENTITY_TAKEN", "{again}");
    assert!(maas.subnets().await.expect("subnets").iter().any(|subnet| subnet.id == 1));
    assert!(maas.images().await.expect("images").iter().any(|(name, _)| name == "ubuntu/noble"));
    assert!(maas.pools().await.expect("pools").is_some_and(|pools| pools.contains(&"default".to_owned())));
    assert!(maas.zones().await.expect("zones").is_some_and(|zones| zones.contains(&"default".to_owned())));

    let disk = machine.disks.first().expect("a disk").id;
    let interface = machine.boot_interface.expect("a boot interface");
    maas.set_boot_disk(&id, disk).await.expect("a boot disk");
    let layout = StorageLayout { layout: Layout::Flat, root_size: String::new(), root_device: None };
    maas.set_storage_layout(&id, &layout).await.expect("a layout");
    let link = NewLink { mode: LinkMode::Auto, subnet: "1".into(), force: true };
    for _ in 0..2 {
        maas.link(&id, interface, &link).await.expect("a link");
    }
    let links = maas.machine(&id).await.expect("read").expect("there").interfaces[0].links.clone();
    assert_eq!(links.len(), 1, "{links:?}");
    maas.set_mtu(&id, interface, 1500).await.expect("an MTU");
    maas.tag(&id, "gpu").await.expect("a tag");
    maas.change(&id, &Changes { hostname: Some("two".into()), ..Changes::default() }).await.expect("a name");

    let early = maas.abort(&id, "x").await.expect_err("nothing goes on");
    assert_eq!(early.reason().as_str(), "WRONG_STATE", "{early}");
    maas.deploy(&id, &deployment()).await.expect("deployed");
    let deployed = maas.machine(&id).await.expect("read").expect("there");
    assert_eq!(
        (deployed.status, deployed.distro_series.as_str(), deployed.hostname.as_str()),
        (DEPLOYED, "noble", "two")
    );
    assert_eq!((deployed.owner.as_str(), deployed.hardware_sync.enabled, deployed.tags.len()), ("admin", true, 1));
    let again = maas.commission(&id, &Commissioning::default()).await.expect_err("it is deployed");
    assert_eq!(again.reason().as_str(), "WRONG_STATE", "{again}");
    maas.annotate(&id, &BTreeMap::from([("mw".to_owned(), "1".to_owned())])).await.expect("annotated");
    assert_eq!(maas.machine(&id).await.expect("read").expect("there").annotations["mw"], "1");
    assert_eq!(maas.power_now(&id).await, Ok(MaasPower::On));
    assert!(!maas.results(&id, ResultKind::Installation, false).await.expect("results").is_empty());
    assert!(maas.results(&id, ResultKind::Release, false).await.expect("results").is_empty());
    assert!(!maas.events(None, "INFO", std::slice::from_ref(&id)).await.expect("events").is_empty());

    maas.release(&id, &Release { erase: Erase::None, comment: "c".into() }).await.expect("released");
    assert_eq!((status(maas, &id).await, sim.hardware(MAC).installs), (READY, 1));
    assert_eq!(maas.delete(&id).await, Ok(true));
    assert_eq!(maas.delete(&id).await, Ok(false));
    assert_eq!(maas.machine(&id).await, Ok(None));
    let offences = auditor::everything(&sim.log(), &auditor::Ours::account("admin"), &BTreeSet::new());
    assert!(offences.is_empty(), "{offences:#?}");
}

#[tokio::test]
async fn a_key_that_was_taken_back_makes_no_stranger() {
    let sim = sim().await;
    let maas = Clients::default().client(&access(&sim)).expect("a client");
    sim.revoke("admin");
    let no = maas.create(&new()).await.expect_err("not taken");
    assert_eq!(no.reason().as_str(), "LOGIN_REFUSED", "{no}");
    assert!(sim.with_mac(MAC).is_empty());
}

/// The one site.
struct Oslo(String);

#[async_trait]
impl SiteSource for Oslo {
    async fn site(&self, name: &str) -> ProviderResult<Site> {
        Ok(Site {
            name: name.to_owned(),
            state: SiteState::Present,
            version: 1,
            url: self.0.clone(),
            ca_pem: String::new(),
            credentials_ref: "key".into(),
            policy: SitePolicy { erase: Erase::Quick, ..SitePolicy::default() },
            profiles: Vec::new(),
            created_at: Timestamp::from_micros(0),
            updated_at: Timestamp::from_micros(0),
        })
    }
}

fn target() -> Target {
    let spec = MachineSpec {
        mac_addresses: vec![MAC.into()],
        serial_number: "SN-1".into(),
        system_uuid: UUID.into(),
        ..MachineSpec::default()
    };
    Target {
        machine_id: MachineId::from_text("m-1"),
        labels: Labels::default(),
        spec,
        notes: Notes::default(),
        by: By::System,
    }
}

fn op(stage: &str) -> Operation {
    Operation { execution: ExecutionId::from_text("exe_1"), stage: stage.into(), attempt: 1, fence: "1".into() }
}

/// A repave from Deployed to Deployed, then a power cycle; by a new server at every turn.
async fn repaved(failing: &str, how: Option<Misbehaviour>) {
    let sim = sim().await;
    let maas = Clients::default().client(&access(&sim)).expect("a client");
    let id = made(&*maas).await;
    maas.deploy(&id, &deployment()).await.expect("deployed");
    let about = format!("{failing} {how:?}");
    if let Some(how) = how {
        sim.misbehave(Calls::op(failing), how, 1);
    }
    let keyring = Arc::new(MemoryKeyring::default().with("key", Credential::Maas(Secret::new(sim.key()))));
    let server = || {
        let (site, clients) = (Arc::new(Oslo(sim.url())), Arc::new(Clients::default()));
        MaasProvider::new("oslo", site, clients, keyring.clone(), Duration::from_secs(60))
    };
    let repave = op("repave");
    let mut due = true;
    let mut turns = 0;
    loop {
        turns += 1;
        assert!(turns < 20, "{about}: it never ends");
        if due {
            match server().install(&target(), "noble", "", &repave).await {
                Ok(_) | Err(ProviderError::Unknown { .. }) => {}
                Err(no) => panic!("{about}: {no}"),
            }
        }
        due = server().next_part(&target(), &repave).await.expect("seen") == NextPart::Due;
        let seen = server().inspect(&target()).await.expect("seen");
        assert_eq!(seen.failed_install, None, "{about}");
        if !due && seen.installed.is_some_and(|installed| installed.operation == repave.key()) {
            break;
        }
    }
    let hardware = sim.hardware(MAC);
    assert_eq!((hardware.installs, hardware.erases), (2, 1), "{about}");
    let before = server().inspect(&target()).await.expect("seen").boot_id;
    let _ = server().reset(&target(), RebootMode::Bmc, &op("reboot")).await.expect("cycled");
    assert_ne!(server().inspect(&target()).await.expect("seen").boot_id, before, "{about}");
    let ours = auditor::Ours::account("admin").only_macs([MAC]);
    let offences = auditor::everything(&sim.log(), &ours, &BTreeSet::from([id]));
    assert!(offences.is_empty(), "{about}: {offences:#?}");
}

#[tokio::test]
async fn a_repave_and_a_power_cycle() {
    repaved("nothing", None).await;
}

#[tokio::test]
async fn a_repave_comes_to_the_same_end_whatever_answer_is_lost() {
    for failing in ["release", "deploy", "set_workload_annotations"] {
        for how in [Misbehaviour::FailAfter, Misbehaviour::ResetBefore, Misbehaviour::ResetAfter, Misbehaviour::Garbage]
        {
            repaved(failing, Some(how)).await;
        }
    }
}
