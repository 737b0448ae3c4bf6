//! A controller that speaks IPMI: OpenIPMI's `ipmi_sim` on loopback, with a machine behind it that is a few files.
//!
//! What the machine did is in a journal that its chassis program writes, one line for each effect: tests judge by
//! that, not by what the controller says. Knobs make the program fail, or say yes and do nothing.
//!
//! What is peculiar to it: it speaks cipher suite 3 and not 17; it takes suite 0 with any password, so it is
//! bound to loopback only; its boot flags never say that they are valid, nor that they are for all boots; a power
//! cycle is off at once and on some ten seconds later; it lets every account act as an administrator.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use domain::Secret;
use domain::credential::BmcLogin;
use domain::endpoint::{BmcEndpoint, HostPort};
use std::fmt::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub const INSTALL: &str = "apt-get install -y --no-install-recommends openipmi ipmitool";
pub const USERNAME: &str = "admin";
pub const SERIAL: &str = "SN-IPMI-7";
pub const MODEL: &str = "TestNode";
/// As ipmitool prints [`GUID`], in the order in which IPMI sends the bytes.
pub const UUID: &str = "a1234567-89ab-4def-a123-456789abcdef";
/// The same, last byte first, as the configuration wants it.
const GUID: &str = "efcdab89674523a1ef4dab89674523a1";

/// Ends the simulator when we do, however we end: the pipe closes.
const GUARD: &str = r#""$@" </dev/null & sim=$!; read -r _; kill -9 $sim; wait $sim"#;

/// ipmi_sim calls it as `get power`, `set power 0|1`, `set reset 1`, `set shutdown 1`, `get boot`, `set boot DEVICE`
/// and `set identify SECONDS FORCE`; a status other than 0 makes the command fail.
const CHASSIS: &str = r#"#!/bin/sh
d=$(dirname "$0")
did() { echo "$*" >> "$d/journal"; }
case $1.$2 in
get.power) echo "power:$(cat "$d/power")"; exit 0 ;;
get.boot) echo "boot:$(cat "$d/boot")"; exit 0 ;;
get.*) echo "$2:0"; exit 0 ;;
esac
[ ! -e "$d/fail-power" ] || [ "$2" = boot ] || exit 1
[ ! -e "$d/did-nothing" ] || exit 0
case $1.$2 in
set.power) echo "$3" > "$d/power"; did power "$3" ;;
set.reset) did reset ;;
set.shutdown) echo 0 > "$d/power"; did shutdown ;;
set.boot) echo "$3" > "$d/boot"; did boot "$3" ;;
set.identify) did identify $3 $4 ;; # one word or two
*) exit 1 ;;
esac
"#;

/// What the machine behind the controller does with its orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// Power commands and the lamp fail.
    FailPower,
    /// Everything is answered with yes, and nothing happens.
    DidNothing,
}

impl Knob {
    const fn file(self) -> &'static str {
        match self {
            Knob::FailPower => "fail-power",
            Knob::DidNothing => "did-nothing",
        }
    }
}

/// A running simulator, ended when dropped.
pub struct IpmiSim {
    folder: tempfile::TempDir,
    address: SocketAddr,
    password: String,
    guard: Child,
}

impl IpmiSim {
    /// With a machine behind it that is off. `password` is that of [`USERNAME`].
    pub async fn start(password: &str) -> Self {
        // a port that was free may be taken by the time it is used
        let mut said = String::new();
        for _ in 0..3 {
            match Self::try_start(password).await {
                Ok(sim) => return sim,
                Err(why) => said = why,
            }
        }
        panic!("ipmi_sim did not come up in three attempts; it said: {said}");
    }

    /// Or what it said.
    async fn try_start(password: &str) -> Result<Self, String> {
        let program = program("ipmi_sim");
        let folder = crate::scratch::folder();
        let at = folder.path().to_owned();
        let address = free_port();
        std::fs::create_dir(at.join("state")).expect("a folder");
        for (file, text) in [
            ("lan.conf", lan_conf(&at, address, password)),
            ("sim.emu", emulation()),
            ("chassis", CHASSIS.to_owned()),
            ("power", "0\n".to_owned()),
            ("boot", "none\n".to_owned()),
            ("journal", String::new()),
        ] {
            std::fs::write(at.join(file), text).expect("writing the simulator's files");
        }
        std::fs::set_permissions(at.join("chassis"), std::fs::Permissions::from_mode(0o755)).expect("permissions");
        let said = std::fs::File::create(at.join("sim.out")).expect("a file");
        let guard = Command::new("sh")
            .args(["-c", GUARD, "ipmi-guard"])
            .arg(program)
            // -n: it does not talk to its standard input; -s: a folder of its own, for what is there wins
            .arg("-n")
            .arg("-c")
            .arg(at.join("lan.conf"))
            .arg("-f")
            .arg(at.join("sim.emu"))
            .arg("-s")
            .arg(at.join("state"))
            .stdin(Stdio::piped())
            .stdout(said.try_clone().expect("a file"))
            .stderr(said)
            .current_dir("/")
            .process_group(0)
            .spawn()
            .expect("sh starts");
        let sim = Self { folder, address, password: password.to_owned(), guard };
        let at = HostPort { host: address.ip().to_string(), port: address.port() };
        for _ in 0..40 {
            if ipmi::is_there(&at, Duration::from_millis(500)).await == Ok(true) {
                return Ok(sim);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(sim.read("sim.out"))
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// As a machine's `bmc_endpoint` says it.
    pub fn endpoint_text(&self) -> String {
        endpoint_text(self.address)
    }

    pub fn endpoint(&self) -> BmcEndpoint {
        BmcEndpoint::parse(&self.endpoint_text()).expect("an endpoint")
    }

    pub fn login(&self) -> BmcLogin {
        BmcLogin { username: USERNAME.to_owned(), password: Secret::new(self.password.clone()) }
    }

    /// What has happened to the machine, in order: `power 1`, `reset`, `shutdown`, `boot pxe`, `identify 0 1` …
    pub fn journal(&self) -> Vec<String> {
        self.read("journal").lines().map(str::to_owned).collect()
    }

    pub fn is_on(&self) -> bool {
        self.read("power").trim() == "1"
    }

    /// As if somebody had pressed the button; the journal does not hear of it.
    pub fn set_power(&self, on: bool) {
        std::fs::write(self.folder.path().join("power"), if on { "1\n" } else { "0\n" }).expect("the power file");
    }

    /// Whether [`Knob::FailPower`] is on.
    pub fn is_failing(&self) -> bool {
        self.folder.path().join(Knob::FailPower.file()).exists()
    }

    pub fn turn(&self, knob: Knob, on: bool) {
        let file = self.folder.path().join(knob.file());
        if on {
            std::fs::write(file, "").expect("a knob");
        } else {
            std::fs::remove_file(file).expect("a knob that was on");
        }
    }

    /// Tells it something as a person would, past the adapter. The password is a test's own.
    pub fn ipmitool(&self, words: &[&str]) -> String {
        let port = self.address.port().to_string();
        let out = Command::new(program("ipmitool"))
            .args(["-I", "lanplus", "-C", "3", "-H", "127.0.0.1", "-p", &port, "-U", USERNAME, "-E"])
            .args(words)
            .env("IPMITOOL_PASSWORD", &self.password)
            .stdin(Stdio::null())
            .output()
            .expect("ipmitool runs");
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(file)).expect("a file of the simulator's")
    }
}

impl Drop for IpmiSim {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // an error here leaves the guard to itself, which is as good
        drop(self.guard.wait());
    }
}

/// The endpoint of a simulator at this address, or of a proxy before it.
pub fn endpoint_text(at: SocketAddr) -> String {
    format!("ipmi://{at}?cipher=3")
}

/// A port nobody has at the moment.
pub fn free_port() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port")
}

/// Where a program is; fails with the command that installs it.
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed; install it: {INSTALL}"))
}

fn lan_conf(folder: &Path, address: SocketAddr, password: &str) -> String {
    let (ip, port, chassis) = (address.ip(), address.port(), folder.join("chassis"));
    let chassis = chassis.display();
    format!(
        r#"name "millwright"
set_working_mc 0x20
  startlan 1
    addr {ip} {port}
    priv_limit admin
    allowed_auths_callback md5
    allowed_auths_user md5
    allowed_auths_operator md5
    allowed_auths_admin md5
    guid {GUID}
  endlan
  chassis_control "{chassis}"
  user 1 false "" "" user 10 none
  user 2 true "{USERNAME}" "{password}" admin 10 md5
  user 3 true "ops" "ops-pass" operator 10 md5
"#
    )
}

/// A BMC with an event log, one temperature sensor and its record, and a FRU. One line for each command.
fn emulation() -> String {
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, " 0x{byte:02x}").expect("a string");
            text
        })
    };
    // of a full record: 35 degrees C, "CPU Temp"
    let record: [u8; 56] = [
        0x00, 0x00, 0x51, 0x01, 0x33, 0x20, 0x00, 0x01, 0x03, 0x01, 0x67, 0x68, 0x01, 0x01, 0x95, 0x7a, 0x95, 0x7a,
        0x3f, 0x3f, 0x00, 0x01, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, 0x23, 0x50, 0x0a, 0xff, 0x00,
        0x5f, 0x55, 0x4b, 0x00, 0x05, 0x0a, 0x02, 0x02, 0x00, 0x00, 0x00, 0xc8, b'C', b'P', b'U', b' ', b'T', b'e',
        b'm', b'p',
    ];
    let fru = fru();
    format!(
        "mc_setbmc 0x20
mc_add 0x20 0x20 no-device-sdrs 0x01 2 0x15 0x9f 0x001291 0x0f02
sel_enable 0x20 1000 0x0a
sensor_add 0x20 0 1 0x01 0x01
sensor_set_value 0x20 0 1 0x23 0
sensor_set_threshold 0x20 0 1 settable 111111 0x5f 0x55 0x4b 0x00 0x05 0x0a
sensor_set_event_support 0x20 0 1 enable scanning per-state 000111111111111 000111111111111 000111111111111 000111111111111
main_sdr_add 0x20{}
mc_add_fru_data 0x20 0 {} data{}
mc_enable 0x20
",
        hex(&record),
        fru.len(),
        hex(&fru)
    )
}

/// A FRU with a product area alone, as the FRU specification lays it out.
fn fru() -> Vec<u8> {
    let ends_with_checksum = |mut bytes: Vec<u8>| {
        let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        bytes.push(sum.wrapping_neg());
        bytes
    };
    // the product area begins 8 bytes in
    let mut all = ends_with_checksum(vec![0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00]);
    // maker, name, part number, version, serial number, asset tag, file
    let mut area = vec![0x01, 0x00, 0x19];
    for field in ["Millwright", MODEL, "P-1", "v1", SERIAL, "", ""] {
        area.push(0xc0 | u8::try_from(field.len()).expect("short"));
        area.extend(field.bytes());
    }
    area.push(0xc1);
    while area.len() % 8 != 7 {
        area.push(0);
    }
    area[1] = u8::try_from(area.len() / 8 + 1).expect("short");
    all.extend(ends_with_checksum(area));
    all
}
