//! A machine of real parts: its BMC is our responder, its system an OpenSSH server, its cluster a kube-apiserver; a
//! wire between BMC and system, so that what the one is told happens to the other.

use datacenter::{Datacenter, Image, Options};
use domain::credential::Credential;
use domain::machine::{Labels, MachineSpec};
use domain::{ExecutionId, MachineId, Reason};
use provider::{Inspect as _, Inspection, Notes, Operation, ProviderError, ProviderResult, Target};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use testkit::keyring::MemoryKeyring;
use testkit::kubernetes::Kubernetes;
use testkit::redfish_responder::{self, Responder, What};
use testkit::sshd::SshHost;
use tokio::time::Instant;

pub const PASSWORD: &str = "correct horse";
pub const CLUSTER: &str = "prod-1";
pub const MEDIA_IMAGE: &str = "by-media";
pub const SCRIPT_IMAGE: &str = "by-script";
pub const FAILING_IMAGE: &str = "by-a-script-that-fails";
pub const SLOW_IMAGE: &str = "by-a-script-that-takes-long";
pub const ISO: &str = "http://127.0.0.1/install.iso";

/// Counts itself, and leaves what an image must leave.
const SCRIPT: &str = "echo $MILLWRIGHT_OPERATION >>/var/lib/installs; \
    echo \"$MILLWRIGHT_IMAGE $MILLWRIGHT_OPERATION\" >/etc/millwright-image";

pub fn images() -> BTreeMap<String, Image> {
    let script = |text: &str| Image::Script { text: text.to_owned() };
    BTreeMap::from([
        (MEDIA_IMAGE.to_owned(), Image::Media { url: ISO.to_owned() }),
        (SCRIPT_IMAGE.to_owned(), script(SCRIPT)),
        (FAILING_IMAGE.to_owned(), script("echo no disk >&2; exit 3")),
        (SLOW_IMAGE.to_owned(), script("echo x >>/var/lib/installs; sleep 300")),
    ])
}

/// Patient with a busy machine.
pub fn options() -> Options {
    Options {
        call_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(20),
        // hosts reboot at once here
        host_rest: Duration::from_millis(50),
        host_rest_max: Duration::from_millis(200),
        images: images(),
        ..Options::default()
    }
}

/// For what never answers.
pub fn impatient() -> Options {
    Options { call_timeout: Duration::from_secs(8), connect_timeout: Duration::from_secs(1), ..options() }
}

pub fn cluster() -> &'static Kubernetes {
    static SHARED: OnceLock<Kubernetes> = OnceLock::new();
    SHARED.get_or_init(|| {
        let server = Kubernetes::start();
        server.grant_millwright();
        server.set_up_joining();
        server
    })
}

pub fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub fn operation(stage: &str, attempt: u32) -> Operation {
    let execution = ExecutionId::from_text(format!("exe_{}", uuid::Uuid::now_v7().simple()));
    Operation { execution, stage: stage.to_owned(), attempt, fence: "1.1".to_owned() }
}

pub struct Ground {
    pub responder: Responder,
    pub host: Option<Arc<SshHost>>,
    pub keyring: Arc<MemoryKeyring>,
    pub dc: Datacenter,
    pub target: Target,
    wire: Option<Wire>,
}

/// What a boot from the CD does to the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Installer {
    /// Another machine id, another host key, and the image's mark.
    #[default]
    Works,
    /// Boots the disk as it was.
    IgnoresTheDisc,
}

struct Wire {
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    installer: Arc<Mutex<Installer>>,
    cut: Arc<AtomicBool>,
    followed: Arc<AtomicUsize>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Ground {
    /// A BMC in the clear and nothing else.
    pub async fn bmc_only(options: Options) -> Self {
        Self::with(redfish_responder::Options::default(), options, None).await
    }

    /// A BMC and a system, wired together; the machine is on.
    pub async fn whole(options: Options) -> Self {
        let host = tokio::task::spawn_blocking(SshHost::start).await.expect("a host");
        Self::with(redfish_responder::Options::default(), options, Some(Arc::new(host))).await
    }

    pub async fn with(bmc: redfish_responder::Options, options: Options, host: Option<Arc<SshHost>>) -> Self {
        let responder = Responder::start(bmc).await;
        Self::around(responder, options, host)
    }

    pub fn around(responder: Responder, options: Options, host: Option<Arc<SshHost>>) -> Self {
        let n = number();
        responder.change(1, |s| {
            s.uuid = format!("4d570000-dc00-4000-8000-{n:012x}");
            s.serial = format!("SN-DC-{n}");
            s.on = true;
        });
        let system = responder.system(1);
        let mut keyring = MemoryKeyring::default().with_bmc("bmc", "operator", PASSWORD);
        let mut spec = MachineSpec {
            bmc_endpoint: responder.endpoint(1),
            serial_number: system.serial.clone(),
            system_uuid: system.uuid.clone(),
            credentials_ref: "bmc".to_owned(),
            ..MachineSpec::default()
        };
        if let Some(host) = &host {
            is_machine(host, &system.serial, &system.uuid);
            std::fs::write(host.inside("/etc/machine-id"), machine_id()).expect("a machine id");
            keyring = keyring.with("ssh", Credential::Ssh(host.login()));
            spec.ssh_endpoint = host.at().to_string();
            spec.credentials_ref = "bmc,ssh".to_owned();
        }
        let keyring = Arc::new(keyring);
        let wire = host.as_ref().map(|host| wire(&responder, host.clone()));
        Self { dc: Datacenter::new(options, keyring.clone()), target: target(spec), keyring, host, responder, wire }
    }

    pub fn host(&self) -> &SshHost {
        self.host.as_ref().expect("a host")
    }

    /// What a boot from the CD does from now on.
    pub fn installer(&self, installer: Installer) {
        let wire = self.wire.as_ref().expect("a wire");
        *wire.installer.lock().unwrap_or_else(PoisonError::into_inner) = installer;
    }

    /// What the BMC does reaches the system no more, or again.
    pub fn cut_wire(&self, cut: bool) {
        self.wire.as_ref().expect("a wire").cut.store(cut, Ordering::Release);
    }

    /// Everything the BMC was told has reached the system.
    pub async fn settled(&self) {
        let wire = self.wire.as_ref().expect("a wire");
        until("the system has followed its BMC", || {
            wire.followed.load(Ordering::Acquire) >= self.responder.done_to(1).len()
        })
        .await;
    }

    pub async fn look(&self) -> Inspection {
        self.dc.inspect(&self.target).await.unwrap_or_else(|e| panic!("a look: {e}"))
    }

    /// The words of the resets that were really done.
    pub fn resets(&self) -> Vec<String> {
        let word = |what: What| if let What::Power { word, .. } = what { Some(word) } else { None };
        self.responder.done_to(1).into_iter().filter_map(word).collect()
    }

    pub fn boots_from(&self) -> Vec<String> {
        let from = |what: What| if let What::Booted { from } = what { Some(from) } else { None };
        self.responder.done_to(1).into_iter().filter_map(from).collect()
    }

    /// How often the install script has run.
    pub fn installs(&self) -> usize {
        std::fs::read_to_string(self.host().inside("/var/lib/installs")).map_or(0, |text| text.lines().count())
    }
}

pub fn target(spec: MachineSpec) -> Target {
    let machine_id = MachineId::from_text(format!("m-dc-{}", number()));
    Target { machine_id, labels: Labels::new(), spec, notes: Notes::default(), by: provider::By::System }
}

/// The host says that it is this machine.
pub fn is_machine(host: &SshHost, serial: &str, uuid: &str) {
    std::fs::write(host.inside("/sys/class/dmi/id/product_serial"), format!("{serial}\n")).expect("a serial number");
    std::fs::write(host.inside("/sys/class/dmi/id/product_uuid"), format!("{uuid}\n")).expect("a UUID");
}

pub fn machine_id() -> String {
    format!("{}\n", uuid::Uuid::now_v7().simple())
}

/// Does to the system what happens to the machine.
fn wire(responder: &Responder, host: Arc<SshHost>) -> Wire {
    let (end, cut, followed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let installer = Arc::new(Mutex::new(Installer::default()));
    let mine = (end.clone(), cut.clone(), followed.clone(), installer.clone());
    let world = responder.world.clone();
    let follow = move || {
        let (end, cut, followed, installer) = mine;
        let mut is_on = true;
        while !end.load(Ordering::Acquire) {
            let all = world.done_to(1);
            for what in &all[followed.load(Ordering::Acquire).min(all.len())..] {
                if !cut.load(Ordering::Acquire) {
                    let how = *installer.lock().unwrap_or_else(PoisonError::into_inner);
                    is_on = happens(&host, what, is_on, how);
                }
                followed.fetch_add(1, Ordering::AcqRel);
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
    };
    let thread = Some(std::thread::spawn(follow));
    Wire { end, thread, installer, cut, followed }
}

/// Answers whether the system is on now.
fn happens(host: &SshHost, what: &What, is_on: bool, installer: Installer) -> bool {
    match what {
        What::Power { on: false, .. } if is_on => {
            host.power_off();
            false
        }
        What::Booted { from } => {
            if is_on {
                host.power_off();
            }
            if from == "Cd" && installer == Installer::Works {
                std::fs::write(host.inside("/etc/machine-id"), machine_id()).expect("a machine id");
                std::fs::write(host.inside("/etc/millwright-image"), format!("{MEDIA_IMAGE}\n")).expect("a mark");
                host.power_on();
                host.change_host_key();
            } else {
                host.power_on();
            }
            true
        }
        _ => is_on,
    }
}

/// A no, with this reason and these words in it.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: ProviderResult<T>, reason: Reason, words: &[&str]) -> ProviderError {
    let e = result.expect_err("a no");
    let text = e.to_string();
    assert_eq!(e.reason(), reason, "{text}");
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
    e
}

pub async fn until(what: &str, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it took too long until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Looks until it is so; answers the look that showed it.
pub async fn looks_until(ground: &Ground, what: &str, so: impl Fn(&Inspection) -> bool) -> Inspection {
    let begun = Instant::now();
    loop {
        let last = ground.dc.inspect(&ground.target).await;
        if let Ok(seen) = &last
            && so(seen)
        {
            return seen.clone();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it took too long until {what}: {last:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Names that machines may be registered with; what they open is in the test's own keyring.
pub async fn known(service: &service::Service, names: &[&str]) {
    for name in names {
        let new = service::NewCredential {
            name: (*name).to_owned(),
            kind: "bmc".to_owned(),
            username: "nobody".to_owned(),
            password: domain::Secret::new("not-used"),
            ..service::NewCredential::default()
        };
        service.set_credential(&testkit::fleet::admin(), new).await.expect("is set");
    }
}
