//! The controllers that the suite is run for, each with the machine behind it as it really is, and with a hand on the
//! line between.

use domain::credential::BmcLogin;
use domain::endpoint::BmcEndpoint;
use domain::{Reason, Secret};
use ipmi::Ipmi;
use provider::{Bmc, ProviderError};
use redfish::{Redfish, Trust};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use testkit::http_faults::{self, Asked, Fault, Faults, Handler, Reply};
use testkit::http_proxy::HttpProxy;
use testkit::ipmi_sim::{self, IpmiSim, Knob};
use testkit::redfish_responder::{Options, Responder, What};
use testkit::sushy::{self, Sushy};
use testkit::udp_proxy::{self, UdpProxy};
use tokio_util::sync::CancellationToken;

/// Of sixteen bytes at most, and without quotes or spaces: ipmi_sim's configuration takes no other.
pub const PASSWORD: &str = "c0rrect-horse";
pub const NEW_PASSWORD: &str = "n3w-horse-1234";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Redfish on our responder.
    Responder,
    /// Redfish on sushy-emulator with its fake driver.
    Sushy,
    /// IPMI on ipmi_sim.
    Ipmi,
}

/// One controller with one machine behind it.
pub struct Subject {
    pub kind: Kind,
    /// Gives up on nothing that a busy machine does.
    pub bmc: Arc<dyn Bmc>,
    /// Gives up soon.
    pub impatient: Arc<dyn Bmc>,
    /// From where it can fetch an image.
    pub image: String,
    behind: Behind,
}

enum Behind {
    Responder(Responder),
    Sushy { number: usize, proxy: HttpProxy },
    Ipmi { sim: IpmiSim, proxy: UdpProxy },
}

fn login(username: &str) -> BmcLogin {
    BmcLogin { username: username.to_owned(), password: Secret::new(PASSWORD) }
}

fn redfish(at: &str, username: &str, request: Duration) -> Arc<dyn Bmc> {
    let minute = Duration::from_secs(60);
    let poll = Duration::from_millis(5);
    let timeouts = redfish::Timeouts { connect: minute, request, task: minute, poll, describe: request, idle: minute };
    let endpoint = BmcEndpoint::parse(at).expect("an endpoint");
    Arc::new(Redfish::new(&endpoint, Trust::Plain, login(username), "rack-1", timeouts))
}

/// The emulator of the whole process; each subject has a system of its own.
fn emulator() -> &'static Sushy {
    static SHARED: OnceLock<Sushy> = OnceLock::new();
    SHARED.get_or_init(|| Sushy::start(200, PASSWORD, None))
}

/// Where images are fetched from, for the whole test.
pub async fn image_server() -> (String, CancellationToken) {
    struct Image;
    impl Handler for Image {
        async fn answer(&self, _: Asked) -> Reply {
            Reply { body: vec![7; 4096], ..Reply::status(200) }.with("content-type", "application/octet-stream")
        }
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/test.iso", listener.local_addr().expect("an address"));
    let closed = CancellationToken::new();
    tokio::spawn(http_faults::serve(listener, None, Arc::new(Faults::default()), Arc::new(Image), closed.clone()));
    (url, closed)
}

const PATIENT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(2);

impl Subject {
    /// `number`: of the emulator's systems.
    pub async fn new(kind: Kind, number: usize, image: &str) -> Self {
        let (bmc, impatient, behind): (Arc<dyn Bmc>, Arc<dyn Bmc>, _) = match kind {
            Kind::Responder => {
                let options = Options { password: PASSWORD.to_owned(), ..Options::default() };
                let username = options.username.clone();
                let responder = Responder::start(options).await;
                let at = responder.endpoint(1);
                (redfish(&at, &username, PATIENT), redfish(&at, &username, SHORT), Behind::Responder(responder))
            }
            Kind::Sushy => {
                let proxy = HttpProxy::before(emulator().address()).await;
                let at = format!("http://localhost:{}/redfish/v1/Systems/{}", proxy.port, Sushy::uuid(number));
                let (patient, short) = (redfish(&at, sushy::USERNAME, PATIENT), redfish(&at, sushy::USERNAME, SHORT));
                (patient, short, Behind::Sushy { number, proxy })
            }
            Kind::Ipmi => {
                let sim = IpmiSim::start(PASSWORD).await;
                let proxy = UdpProxy::before(sim.address()).await;
                let endpoint = BmcEndpoint::parse(&ipmi_sim::endpoint_text(proxy.address())).expect("an endpoint");
                let made = |presence, call| {
                    let timeouts = ipmi::Timeouts { presence, call };
                    Arc::new(Ipmi::new(&endpoint, login(ipmi_sim::USERNAME), "rack-1", timeouts))
                };
                let (patient, short) = (made(PATIENT, PATIENT), made(SHORT, SHORT));
                (patient, short, Behind::Ipmi { sim, proxy })
            }
        };
        Self { kind, bmc, impatient, image: image.to_owned(), behind }
    }

    pub fn identity(&self) -> String {
        match &self.behind {
            Behind::Responder(responder) => responder.system(1).uuid,
            Behind::Sushy { number, .. } => Sushy::uuid(*number),
            Behind::Ipmi { .. } => ipmi_sim::UUID.to_owned(),
        }
    }

    pub fn account(&self) -> &'static str {
        match self.kind {
            Kind::Responder => "operator",
            Kind::Sushy => sushy::USERNAME,
            Kind::Ipmi => ipmi_sim::USERNAME,
        }
    }

    // ---- the machine as it really is ----

    pub fn is_on(&self) -> bool {
        match &self.behind {
            Behind::Responder(responder) => responder.system(1).on,
            Behind::Sushy { number, .. } => emulated(*number, "GET", "", None)["PowerState"] == "On",
            Behind::Ipmi { sim, .. } => sim.is_on(),
        }
    }

    pub async fn set_power(&self, on: bool) {
        match &self.behind {
            Behind::Responder(responder) => responder.change(1, |s| s.on = on),
            Behind::Sushy { number, .. } => {
                let word = if on { "On" } else { "ForceOff" };
                emulated(*number, "POST", "/Actions/ComputerSystem.Reset", Some(json!({ "ResetType": word })));
                self.until("the emulator's machine has its power", || self.is_on() == on).await;
            }
            Behind::Ipmi { sim, .. } => sim.set_power(on),
        }
    }

    /// Where it boots from next by an order: `pxe`, `pxe for all`, or nothing.
    pub fn next_boot(&self) -> String {
        match &self.behind {
            Behind::Responder(responder) => {
                let system = responder.system(1);
                match system.boot_enabled.as_str() {
                    "Disabled" => String::new(),
                    "Continuous" => format!("{} for all", system.boot_target.to_lowercase()),
                    _ => system.boot_target.to_lowercase(),
                }
            }
            Behind::Sushy { number, .. } => {
                let boot = emulated(*number, "GET", "", None)["Boot"].clone();
                match boot["BootSourceOverrideTarget"].as_str() {
                    None | Some("Hdd" | "None") => String::new(),
                    Some(target) => format!("{} for all", target.to_lowercase()),
                }
            }
            Behind::Ipmi { sim, .. } => {
                let set: Vec<String> =
                    sim.journal().iter().filter_map(|l| l.strip_prefix("boot ").map(str::to_owned)).collect();
                set.last().filter(|device| *device != "none").cloned().unwrap_or_default()
            }
        }
    }

    pub fn set_next_boot_to_pxe(&self) {
        match &self.behind {
            Behind::Responder(responder) => {
                responder.change(1, |s| (s.boot_target, s.boot_enabled) = ("Pxe".into(), "Once".into()));
            }
            Behind::Sushy { number, .. } => {
                let boot = json!({ "BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Continuous" });
                emulated(*number, "PATCH", "", Some(json!({ "Boot": boot })));
            }
            Behind::Ipmi { sim, .. } => drop(sim.ipmitool(&["chassis", "bootdev", "pxe"])),
        }
    }

    pub fn medium(&self) -> Option<String> {
        match &self.behind {
            Behind::Responder(responder) => responder.system(1).media,
            Behind::Sushy { number, .. } => {
                let shown = emulated(*number, "GET", "/VirtualMedia/Cd", None);
                let is_in = shown["Inserted"] == true;
                is_in.then(|| shown["Image"].as_str().unwrap_or_default().to_owned())
            }
            Behind::Ipmi { .. } => None,
        }
    }

    pub fn put_medium_in(&self) {
        match &self.behind {
            Behind::Responder(responder) => responder.change(1, |s| s.media = Some(self.image.clone())),
            Behind::Sushy { number, .. } => {
                let path = "/VirtualMedia/Cd/Actions/VirtualMedia.InsertMedia";
                emulated(*number, "POST", path, Some(json!({ "Image": self.image })));
            }
            Behind::Ipmi { .. } => panic!("IPMI has no media"),
        }
    }

    pub fn lamp(&self) -> bool {
        match &self.behind {
            Behind::Responder(responder) => responder.system(1).lamp,
            Behind::Sushy { number, .. } => emulated(*number, "GET", "", None)["IndicatorLED"] != "Off",
            Behind::Ipmi { sim, .. } => {
                sim.journal().iter().rfind(|l| l.starts_with("identify")).is_some_and(|l| l.ends_with('1'))
            }
        }
    }

    pub fn set_lamp(&self, on: bool) {
        match &self.behind {
            Behind::Responder(responder) => responder.change(1, |s| s.lamp = on),
            Behind::Sushy { number, .. } => {
                let word = if on { "Lit" } else { "Off" };
                emulated(*number, "PATCH", "", Some(json!({ "IndicatorLED": word })));
            }
            Behind::Ipmi { .. } => {}
        }
    }

    pub fn pending_cores(&self) -> Option<Value> {
        match &self.behind {
            Behind::Responder(responder) => responder.system(1).bios_pending.get("Cores").cloned(),
            Behind::Sushy { .. } | Behind::Ipmi { .. } => None,
        }
    }

    pub fn firmware(&self) -> String {
        match &self.behind {
            Behind::Responder(responder) => responder.system(1).firmware,
            Behind::Sushy { .. } | Behind::Ipmi { .. } => String::new(),
        }
    }

    /// Whether it lets somebody in with this password, asked past the adapters.
    pub fn takes(&self, password: &str) -> bool {
        match &self.behind {
            Behind::Responder(responder) => responder.password_of(self.account()).as_deref() == Some(password),
            Behind::Sushy { .. } => false,
            Behind::Ipmi { sim, .. } => {
                let at = sim.address();
                let status = Command::new("ipmitool")
                    .args(["-I", "lanplus", "-C", "3", "-H", &at.ip().to_string(), "-p", &at.port().to_string()])
                    .args(["-U", self.account(), "-P", password, "mc", "info"])
                    .output();
                status.expect("ipmitool runs").status.success()
            }
        }
    }

    /// What was done to the machine, in order, as far as somebody keeps a record.
    pub fn effects(&self) -> Vec<String> {
        match &self.behind {
            Behind::Responder(responder) => {
                let own = |what: &What| {
                    let by_itself = matches!(what, What::Booted { .. } | What::BiosApplied(_));
                    !by_itself && !matches!(what, What::LoggedIn | What::LoggedOut | What::LoginRefused)
                };
                responder.journal().iter().filter(|e| own(&e.what)).map(|e| format!("{:?}", e.what)).collect()
            }
            Behind::Sushy { .. } => vec![format!(
                "on {} boot {:?} medium {:?} lamp {}",
                self.is_on(),
                self.next_boot(),
                self.medium(),
                self.lamp()
            )],
            Behind::Ipmi { sim, .. } => sim.journal(),
        }
    }

    // ---- the line to it ----

    /// Nothing is answered from now on.
    pub fn hang(&self) {
        match &self.behind {
            Behind::Responder(responder) => responder.faults.arm("", "", Fault::Hold, usize::MAX),
            Behind::Sushy { proxy, .. } => proxy.faults.arm("", "", Fault::Hold, usize::MAX),
            Behind::Ipmi { proxy, .. } => proxy.set(udp_proxy::Fault::Drop),
        }
    }

    /// How many questions have come since it hangs, or ever.
    pub fn asked(&self) -> usize {
        match &self.behind {
            Behind::Responder(responder) => responder.faults.hits(),
            Behind::Sushy { proxy, .. } => proxy.faults.hits(),
            Behind::Ipmi { proxy, .. } => proxy.asked().len(),
        }
    }

    /// Everything is answered with no; `change`: only what would change something.
    pub fn refuse(&self, change: bool) {
        let body = r#"{"error": {"@Message.ExtendedInfo": [{"Message": "Not today."}]}}"#;
        let faults = match &self.behind {
            Behind::Responder(responder) => &responder.faults,
            Behind::Sushy { proxy, .. } => &proxy.faults,
            Behind::Ipmi { sim, .. } => return sim.turn(Knob::FailPower, true),
        };
        let methods: &[&str] = if change { &["POST", "PATCH"] } else { &["GET"] };
        for method in methods {
            faults.arm(method, "", Fault::Status(403, body.into()), usize::MAX);
        }
    }

    /// All is well again. Answers how often something went wrong, where that is counted.
    pub fn mend(&self) -> Option<usize> {
        match &self.behind {
            Behind::Responder(responder) => Some(responder.faults.disarm()),
            Behind::Sushy { proxy, .. } => Some(proxy.faults.disarm()),
            Behind::Ipmi { sim, proxy } => {
                proxy.set(udp_proxy::Fault::None);
                if sim.is_failing() {
                    sim.turn(Knob::FailPower, false);
                }
                None
            }
        }
    }

    pub async fn until(&self, what: &str, so: impl Fn() -> bool) {
        let begun = tokio::time::Instant::now();
        while !so() {
            assert!(begun.elapsed() < PATIENT, "{:?}: it took too long until {what}", self.kind);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The emulator, asked past the adapters and past the proxy.
fn emulated(number: usize, method: &str, path: &str, body: Option<Value>) -> Value {
    let url = format!("http://localhost:{}/redfish/v1/Systems/{}{path}", emulator().port, Sushy::uuid(number));
    let mut curl = Command::new("curl");
    curl.args(["-s", "--max-time", "60", "-u", &format!("{}:{PASSWORD}", sushy::USERNAME), "-X", method, &url]);
    if let Some(body) = body {
        curl.args(["-H", "Content-Type: application/json", "--data", &body.to_string()]);
    }
    let out = curl.output().expect("curl runs; install it: apt-get install -y curl");
    serde_json::from_slice(&out.stdout).unwrap_or(Value::Null)
}

#[track_caller]
pub fn is_silence(e: &ProviderError, what: &str) {
    assert!(matches!(e.reason(), Reason::Unreachable | Reason::ProviderSilent), "{what}: {e:?}");
}
