//! A server that takes agents, and machines that are folders: each has a root file system of its own in which its agent, a
//! real process, looks and works. What the server says is read over REST; what happened on a machine from its files.

use crate::boot_commands::http;
use crate::process::{Ended, Process, clean, run, until};
use crate::server::{Client, Home, Launch, Server};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// Nodes are active a few seconds after their agent has come, and nobody is lost because a busy machine stalled.
pub const QUICK: &str = "[engine]\nlease_seconds = 4\ncall_timeout_seconds = 1\n\
    [log]\nlevel = 'info'\n\
    [agents]\nheartbeat_seconds = 1\nlost_after_seconds = 60\nback_after_beats = 2\n";

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The agent that is built from these sources. An older one would be no witness.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let agent = Path::new(env!("CARGO_BIN_EXE_millwright")).with_file_name("millwright-agent");
        let built = std::fs::metadata(&agent).and_then(|meta| meta.modified()).ok();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's crates");
        let sources = ["agent", "domain", "gpu", "proto"].map(|name| newest(&crates.join(name).join("src")));
        if built.is_none_or(|built| sources.into_iter().max().is_some_and(|source| source > built)) {
            build(&agent);
        }
        agent
    })
}

fn newest(folder: &Path) -> SystemTime {
    let entries = std::fs::read_dir(folder).expect("sources").map(|entry| entry.expect("an entry").path());
    let changed = entries.map(|path| match path.is_dir() {
        true => newest(&path),
        false => std::fs::metadata(&path).and_then(|meta| meta.modified()).expect("a time"),
    });
    changed.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Beside the program under test, with the same profile.
fn build(agent: &Path) {
    let profile = agent.parent().expect("a folder of a profile");
    let target = profile.parent().expect("a folder for targets");
    let name = profile.file_name().map(|name| name.to_string_lossy().into_owned()).expect("a profile");
    let name = if name == "debug" { "dev" } else { &name };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "-p", "millwright-agent", "--profile", name, "--target-dir"]).arg(target);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    let built = cargo.output().unwrap_or_else(|e| panic!("the agent is missing, and cargo does not start: {e}"));
    assert!(
        built.status.success() && agent.is_file(),
        "the agent is missing; build it: cargo build -p millwright-agent\n{}",
        String::from_utf8_lossy(&built.stderr)
    );
}

/// Looks until there is something, without taking the processor from those who are looked at.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    until(what, || {
        let seen = look();
        if seen.is_none() {
            std::thread::park_timeout(LOOK_EVERY);
        }
        seen
    })
}

/// What a program prints; it must succeed.
pub fn said(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A server's home, and beside it machines: agents hold keys, which no folder that is searched for secrets may.
pub struct Site {
    pub home: Home,
    pub launch: Launch,
    machines: TempDir,
}

impl Site {
    pub fn new() -> Self {
        Self::with(QUICK)
    }

    pub fn with(config: &str) -> Self {
        let home = Home::new();
        let launch = home.launch("data").config(config);
        let machines = testkit::scratch::folder();
        // scripts run as nobody, who must be able to come in
        open(machines.path(), 0o755);
        Self { home, launch, machines }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.machines.path().join(name)
    }

    /// A machine that nobody has touched.
    pub fn machine(&self, name: &str) -> Machine {
        let folder = self.path(name);
        let machine = Machine { root: folder.join("root"), state: folder.join("state"), home: self.home.path("") };
        machine.furnish(name);
        machine
    }

    /// A node, and the file with its bundle.
    pub fn create(&self, server: &Client, name: &str) -> PathBuf {
        self.bundle(server, &["node", "create", name])
    }

    /// The file that a command writes a bundle to.
    pub fn bundle(&self, server: &Client, words: &[&str]) -> PathBuf {
        let file = tempfile::Builder::new().prefix("bundle-").tempfile_in(self.machines.path()).expect("a file");
        let path = file.into_temp_path();
        let name = path.to_path_buf();
        drop(path);
        server.ok(&[words, &["--out", name.to_str().expect("a plain path")]].concat());
        name
    }

    /// A machine whose agent has enrolled with a new node of the same name and runs; waits until it is active.
    pub fn active(&self, server: &Client, name: &str) -> (Machine, Process) {
        let machine = self.machine(name);
        machine.give(&self.create(server, name));
        let agent = machine.run();
        server.node_is(name, "active");
        (machine, agent)
    }
}

fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("its rights");
}

/// A machine: a root file system, and the state of its agent.
pub struct Machine {
    pub root: PathBuf,
    pub state: PathBuf,
    home: PathBuf,
}

impl Machine {
    pub fn file(&self, path: &str, content: &str) -> PathBuf {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("its folder");
        std::fs::write(&path, content).expect("a file");
        path
    }

    fn furnish(&self, name: &str) {
        let serial = format!("SN-{name}");
        // any digits that are this machine's alone
        let digits: String = name.bytes().map(|b| format!("{b:02x}")).chain(["0".repeat(12)]).collect();
        for (path, content) in [
            ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n"),
            ("etc/shadow", "root:!:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n"),
            ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
            ("etc/gshadow", "root:*::\nnogroup:*::\n"),
            ("etc/.pwd.lock", ""),
            ("etc/hostname", name),
            ("etc/rc.local", "#!/bin/sh\nexit 0\n"),
            ("root/.ssh/authorized_keys", "ssh-ed25519 AAAAsite site\n"),
            ("proc/self/mountinfo", "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"),
            ("proc/sys/kernel/random/boot_id", "7a1b8f6e-53c2-4a55-9a60-0c2f3c1f2d11\n"),
            (
                "proc/sysvipc/shm",
                "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid\n",
            ),
            (
                "proc/sysvipc/msg",
                "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid\n",
            ),
            ("proc/sysvipc/sem", "       key      semid perms      nsems   uid   gid  cuid  cgid\n"),
            ("proc/1/status", "Name:\tinit\nState:\tS (sleeping)\nUid:\t0\t0\t0\t0\n"),
            ("proc/1/stat", "1 (init) S 0 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 42 0 0"),
            ("proc/1/cgroup", "0::/init.scope\n"),
            ("proc/1/loginuid", "4294967295"),
            ("sys/class/dmi/id/product_serial", &serial),
            ("sys/class/dmi/id/product_uuid", &format!("4c4c4544-0000-4000-8000-{}", &digits[..12])),
            ("sys/class/dmi/id/sys_vendor", "Test"),
            ("sys/class/dmi/id/product_name", "Node"),
        ] {
            self.file(path, content);
        }
        for folder in [
            "tmp",
            "var/tmp",
            "dev/shm",
            "home",
            "scratch",
            "usr/bin",
            "proc/1/fd",
            "usr/lib/systemd",
            "var/lib",
            "var/spool/cron/crontabs",
            "etc/cron.d",
            "etc/systemd/system/multi-user.target.wants",
            "sys/block",
            "run",
        ] {
            std::fs::create_dir_all(self.root.join(folder)).expect("a folder");
        }
    }

    /// Lets a script run here, as nobody.
    pub fn allow(&self, script: &Path) {
        let digest = said(Command::new("sha256sum").arg(script));
        let digest = digest.split(' ').next().expect("a digest");
        let list = self.file("etc/millwright-agent/allowed-scripts", &format!("{digest}\n"));
        open(&list, 0o644);
        open(list.parent().expect("its folder"), 0o755);
    }

    /// Puts a bundle where the next start looks for one.
    pub fn give(&self, bundle: &Path) {
        std::fs::create_dir_all(&self.state).expect("a folder");
        open(&self.state, 0o700);
        std::fs::copy(bundle, self.state.join("bundle.json")).expect("copied");
        open(&self.state.join("bundle.json"), 0o600);
    }

    /// One of the agent's commands, for this machine.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = clean(Command::new(binary()), &self.home);
        command.args(words).arg("--root").arg(&self.root).arg("--state").arg(&self.state);
        // whatever it says is searched for secrets
        command.env("MILLWRIGHT_AGENT_LOG", "debug");
        command
    }

    pub fn run(&self) -> Process {
        Process::spawn(&mut self.command(&["run"]))
    }

    pub fn do_(&self, words: &[&str]) -> Ended {
        run(&mut self.command(words))
    }

    /// Who its agent is, by its own word.
    pub fn identity(&self) -> Value {
        let shown = self.do_(&["show", "-o", "json"]).with(0).out;
        serde_json::from_str::<Value>(&shown).expect("JSON")["identity"].clone()
    }

    /// A copy of its disk, as far as the agent's state goes.
    pub fn copied_to(&self, folder: &Path) -> Machine {
        std::fs::create_dir_all(folder).expect("a folder");
        let state = folder.join("state");
        said(Command::new("cp").arg("-a").arg(&self.state).arg(&state));
        Machine { root: self.root.clone(), state, home: self.home.clone() }
    }
}

impl Client {
    /// What the server answers over REST.
    pub fn get(&self, path: &str) -> Value {
        let token = std::fs::read_to_string(&self.token_file).expect("a token");
        let (status, body) = http(&self.url, "GET", &format!("/api/v1/admin/{path}"), Some(token.trim()), b"");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}\n{body}"))
    }

    pub fn node(&self, name: &str) -> Value {
        self.get(&format!("nodes/{name}"))
    }

    /// Waits until a node has this status.
    pub fn node_is(&self, name: &str, status: &str) -> Value {
        eventually(&format!("node {name} is {status}"), || Some(self.node(name)).filter(|n| n["status"] == status))
    }

    /// Waits until a job has this status.
    pub fn job_is(&self, job: &str, status: &str) -> Value {
        eventually(&format!("job {job} is {status}"), || {
            let now = self.get(&format!("jobs/{job}"));
            let ended =
                |s: &str| ["completed", "failed_retryable", "failed_manual_intervention", "cancelled"].contains(&s);
            let is = now["status"].as_str().expect("a status");
            assert!(is == status || !ended(is), "{now:#}");
            (is == status).then_some(now)
        })
    }

    /// The same for an attempt of it.
    pub fn job_is_again(&self, job: &str, status: &str, attempt: u64) -> Value {
        eventually(&format!("attempt {attempt} of job {job} is there"), || {
            Some(self.get(&format!("jobs/{job}"))).filter(|now| now["attempt"] == attempt)
        });
        self.job_is(job, status)
    }

    /// Orders a script and answers with the task's id.
    pub fn exec(&self, node: &str, script: &Path, args: &[&str]) -> String {
        let script = script.to_str().expect("a plain path");
        let words = ["node", "exec", node, "--script", script, "-o", "name", "--"];
        self.ok(&[&words[..], args].concat()).trim().to_owned()
    }

    pub fn task(&self, task: &str) -> Value {
        self.get(&format!("tasks/{task}"))
    }

    pub fn task_is(&self, task: &str, status: &str) -> Value {
        eventually(&format!("task {task} is {status}"), || Some(self.task(task)).filter(|t| t["status"] == status))
    }

    /// How a task has moved, the oldest first, from the record of all moves.
    pub fn moves(&self, node: &str, task: &str) -> Vec<String> {
        let mut moves = Vec::new();
        loop {
            let page = self.get(&format!("nodes/{node}/history?limit=200&offset={}", moves.len()));
            let rows = page["data"].as_array().expect("a list").clone();
            if rows.is_empty() {
                break;
            }
            moves.extend(rows);
        }
        let of_task = moves.iter().rev().filter(|row| row["entity_id"] == task);
        of_task.map(|row| row["to"].as_str().expect("a status").to_owned()).collect()
    }
}

/// A script that leaves a line when it starts and one when it ends, in a file for each of its labels; between them it
/// waits for a word, if it is told to.
pub struct Script {
    pub file: PathBuf,
    folder: PathBuf,
}

impl Script {
    pub fn new(site: &Site) -> Self {
        let folder = site.path("effects");
        std::fs::create_dir(&folder).expect("a folder");
        open(&folder, 0o777);
        let file = site.path("script.sh");
        // a wait that nobody ends would outlive the test
        let text = "#!/bin/sh\necho started >> \"$1\"\necho hello from $1\ncase $2 in\n\
            wait) n=0; while [ ! -e \"$1.go\" ] && [ $n -lt 1200 ]; do sleep 0.1; n=$((n+1)); done ;;\n\
            *) sleep $2 ;;\nesac\necho ended >> \"$1\"\n";
        std::fs::write(&file, text).expect("a script");
        Self { file, folder }
    }

    /// Where the effects of a label are.
    pub fn effects(&self, label: &str) -> String {
        self.folder.join(label).to_str().expect("a plain path").to_owned()
    }

    pub fn count(&self, label: &str, word: &str) -> usize {
        let text = std::fs::read_to_string(self.effects(label)).unwrap_or_default();
        text.lines().filter(|line| *line == word).count()
    }

    pub fn wait_for(&self, label: &str, word: &str) {
        eventually(&format!("{label} has {word}"), || (self.count(label, word) > 0).then_some(()));
    }

    /// Lets one that waits go on.
    pub fn go(&self, label: &str) {
        std::fs::write(format!("{}.go", self.effects(label)), "").expect("a word");
    }
}

impl Site {
    pub fn start(&self) -> Server {
        self.launch.start()
    }
}
