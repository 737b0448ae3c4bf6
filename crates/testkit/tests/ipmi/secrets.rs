//! Where the password is not: command lines, environments, files, errors, `Debug`, traces.

use crate::PATIENT;
use domain::Secret;
use domain::credential::BmcLogin;
use domain::hardware::PowerAction;
use ipmi::Ipmi;
use provider::Bmc as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use testkit::ipmi_sim::{IpmiSim, USERNAME, program};

/// As long as the simulator takes them.
const CANARY: &str = "cnry-ipmi-012345";
const NEW_CANARY: &str = "cnry-new--987654";

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Stands for ipmitool: keeps what the kernel shows of the process to others, then becomes it.
fn witness(folder: &Path) -> PathBuf {
    let (seen, real) = (folder.join("seen"), program("ipmitool"));
    let (seen, real) = (seen.display(), real.display());
    let text =
        format!("/bin/cat /proc/$$/cmdline /proc/$$/environ >> {seen}\n/bin/echo >> {seen}\nexec {real} \"$@\"\n");
    crate::script(folder, &text)
}

/// In the clear, and as the bytes of a raw command.
fn shows(text: &str) -> bool {
    [CANARY, NEW_CANARY].iter().any(|canary| {
        let hex = |between: &str| canary.bytes().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(between);
        [(*canary).to_owned(), canary[..12].to_owned(), hex(""), hex(" 0x"), hex(" ")]
            .iter()
            .any(|form| text.contains(form))
    })
}

#[tokio::test]
async fn the_password_is_nowhere_to_be_seen() {
    let sim = IpmiSim::start(CANARY).await;
    let folder = tempfile::tempdir().expect("a folder");
    let tool = witness(folder.path());
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
    let guard = tracing::subscriber::set_default(subscriber);

    let login = |password: &str| BmcLogin { username: USERNAME.to_owned(), password: Secret::new(password) };
    let with = |password: &str| Ipmi::new(&sim.endpoint(), login(password), "rack-1", PATIENT).with_tool(&tool);
    let bmc = with(CANARY);
    let mut said = vec![format!("{bmc:?} {:?}", bmc.console().await)];
    said.push(format!("{:?}", bmc.describe().await.expect("the canary is the right password")));
    said.push(format!("{:?}", bmc.power(PowerAction::On).await));
    said.push(format!("{:?}", bmc.sensors().await));
    said.push(format!("{:?}", bmc.set_password(USERNAME, &Secret::new(NEW_CANARY)).await.expect("set")));
    let refused = bmc.state().await.expect_err("the old one is refused");
    said.push(format!("{refused} {refused:?}"));
    with(NEW_CANARY).state().await.expect("the new one is taken");
    drop(guard);

    for text in &said {
        assert!(!shows(text), "{text}");
    }
    let seen = String::from_utf8_lossy(&std::fs::read(folder.path().join("seen")).expect("witnessed")).into_owned();
    assert!(seen.lines().count() >= 8 && seen.contains("lanplus") && seen.contains("LC_ALL=C"), "{seen}");
    assert!(!shows(&seen), "{seen}");
    let traced = String::from_utf8_lossy(&lines.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned();
    assert!(traced.contains("ipmitool ended"), "the trace was listened to: {traced}");
    assert!(!shows(&traced), "{traced}");
    assert_eq!(left_behind(folder.path()), "", "files with the password in them");
}

/// Names of files that appeared since the folder was made, wherever temporary files go, and hold a canary.
/// The simulator's own are known by their name.
fn left_behind(since: &Path) -> String {
    let temporary = std::env::temp_dir();
    let places = [temporary.as_path(), Path::new("/dev/shm"), Path::new("/tmp"), Path::new(".")];
    let out = Command::new("find")
        .args(places.iter().filter(|place| place.is_dir()))
        .args(["-xdev", "-maxdepth", "3", "-type", "f", "-size", "-64k", "-newer"])
        .arg(since.join("ipmitool"))
        .args(["-not", "-name", "lan.conf", "-not", "-path", "*/state/*"])
        .args(["-exec", "grep", "-l", "-a", "-F", "-e", CANARY, "-e", NEW_CANARY, "{}", "+"])
        .output()
        .expect("find runs");
    String::from_utf8_lossy(&out.stdout).into_owned()
}
