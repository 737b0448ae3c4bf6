//! A real Kubernetes API server with its etcd, for tests: on loopback, in a folder of its own, with an authority of
//! its own, gone when the process ends, however it ends. `scripts/kube-apiserver` builds the server once.
//!
//! It is version 1.20 without controllers and kubelets: nothing changes but what somebody asks for. The test plays
//! the others, as who they are: [`Kubernetes::kubelet`] has a kubelet's certificate and rights, no more. What tests
//! look at and change goes by `curl`, not by the code under test.
#![allow(clippy::expect_used, clippy::panic)] // for tests only: what cannot be set up is a failed test

use domain::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

const VERSION: &str = "v1.20.2";
/// Long enough for a busy machine; a server that is not up by then is not coming.
const PATIENCE: Duration = Duration::from_secs(180);
/// Ports are found free and taken a moment later; somebody else may have been quicker.
const STARTS: usize = 4;

/// One server. Dropped: stopped and removed.
pub struct Kubernetes {
    folder: PathBuf,
    port: u16,
    authority: CertifiedIssuer<'static, KeyPair>,
    guard: Mutex<Option<Child>>,
    made: AtomicUsize,
    /// Of a user called `millwright`, who has no rights until [`Kubernetes::grant_millwright`].
    pub millwright_token: String,
    /// Of a user called `limited`, who has no rights at all.
    pub limited_token: String,
}

/// Somebody who talks to the server, by `curl`.
pub struct Api {
    url: String,
    authority: PathBuf,
    who: Who,
}

enum Who {
    Nobody,
    Token(String),
    Certificate(PathBuf, PathBuf),
}

/// Runs both until its input ends, then removes the folder. Arguments: the folder, etcd's words up to `--`, the
/// server's words.
const GUARD: &str = r#"
folder=$1; shift
etcd=
while [ "$1" != -- ]; do etcd="$etcd '$1'"; shift; done
shift
eval "$etcd" </dev/null >"$folder/etcd.log" 2>&1 & etcd=$!
"$@" </dev/null >"$folder/server.log" 2>&1 & server=$!
while read -r order; do :; done
kill "$server" "$etcd"; wait "$server"; wait "$etcd"
rm -rf "$folder"
"#;

/// The server of this test process, started when first asked for. Runs until the process ends.
pub fn shared() -> &'static Kubernetes {
    static SHARED: OnceLock<Kubernetes> = OnceLock::new();
    SHARED.get_or_init(Kubernetes::start)
}

impl Kubernetes {
    pub fn start() -> Self {
        for _ in 0..STARTS {
            if let Some(started) = Self::try_start() {
                return started;
            }
        }
        panic!("no port stayed free long enough to start a Kubernetes API server, {STARTS} times");
    }

    fn try_start() -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("millwright-k8s-").tempdir_in(crate::scratch::place());
        let folder = folder.expect("a folder").keep();
        let authority = authority();
        let this = Self {
            port: free_port(),
            folder,
            authority,
            guard: Mutex::new(None),
            made: AtomicUsize::new(0),
            millwright_token: crate::canary::plant("kube"),
            limited_token: crate::canary::plant("limited"),
        };
        this.write_files();
        *this.guard.lock().unwrap_or_else(PoisonError::into_inner) = Some(this.spawn());
        let begun = Instant::now();
        while !this.is_ready() {
            let log = std::fs::read_to_string(this.file("server.log")).unwrap_or_default();
            let etcd = std::fs::read_to_string(this.file("etcd.log")).unwrap_or_default();
            if log.contains("address already in use") || etcd.contains("address already in use") {
                return None;
            }
            let tail = |text: &str| text[text.len().saturating_sub(3000)..].to_owned();
            let gave_up = log.lines().any(|line| line.starts_with("Error:"));
            assert!(
                !gave_up && begun.elapsed() < PATIENCE,
                "the API server did not come up:\n{}\n{}",
                tail(&etcd),
                tail(&log)
            );
            std::thread::park_timeout(Duration::from_millis(100));
        }
        Some(this)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).expect("written");
    }

    fn write_files(&self) {
        self.write("ca.crt", &self.authority.pem());
        self.issue("server", "kube-apiserver", None);
        self.issue("admin", "admin", Some("system:masters"));
        let accounts = KeyPair::generate().expect("a key");
        self.write("sa.key", &accounts.serialize_pem());
        self.write("sa.pub", &accounts.public_key_pem());
        let tokens = format!("{},millwright,1\n{},limited,2\n", self.millwright_token, self.limited_token);
        self.write("tokens.csv", &tokens);
        self.write("audit.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n");
    }

    /// A certificate of the server's own authority, in NAME.crt and NAME.key.
    fn issue(&self, file: &str, name: &str, group: Option<&str>) {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate");
        self.write(&format!("{file}.crt"), &certificate.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    fn spawn(&self) -> Child {
        let folder = self.folder.display().to_string();
        let in_folder = |flag: &str, name: &str| format!("--{flag}={folder}/{name}");
        let (client, peer) = (format!("http://127.0.0.1:{}", free_port()), format!("http://127.0.0.1:{}", free_port()));
        let etcd = [
            program("etcd", "apt-get install -y --no-install-recommends etcd-server"),
            "--name=n1".to_owned(),
            in_folder("data-dir", "etcd"),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=n1={peer}"),
        ];
        let server = [
            server_program(),
            format!("--etcd-servers={client}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.port),
            in_folder("cert-dir", "certs"),
            in_folder("tls-cert-file", "server.crt"),
            in_folder("tls-private-key-file", "server.key"),
            in_folder("client-ca-file", "ca.crt"),
            in_folder("token-auth-file", "tokens.csv"),
            in_folder("service-account-key-file", "sa.pub"),
            in_folder("service-account-signing-key-file", "sa.key"),
            "--service-account-issuer=https://kubernetes.test".to_owned(),
            "--enable-bootstrap-token-auth".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            in_folder("audit-policy-file", "audit.yaml"),
            in_folder("audit-log-path", "audit.log"),
        ];
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "kubernetes-guard", &folder]).args(etcd).arg("--").args(server);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        // an interrupt from the terminal is for us; the guard learns of it by the pipe
        command.process_group(0).spawn().expect("the guard of the API server starts")
    }

    fn is_ready(&self) -> bool {
        let admin = self.admin();
        let there = |path: &str| admin.try_call("GET", path, None).is_some_and(|(status, _)| status == 200);
        there("/readyz")
            && ["kube-system", "kube-public"].iter().all(|name| there(&format!("/api/v1/namespaces/{name}")))
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The certificate of the server's authority, in PEM.
    pub fn authority_pem(&self) -> String {
        self.authority.pem()
    }

    /// A kubeconfig as an operator would store it, with this token.
    pub fn kubeconfig(&self, token: &str) -> Secret {
        kubeconfig(&self.url(), &self.authority_pem(), token)
    }

    /// One that says who it is by a certificate.
    pub fn kubeconfig_by_certificate(&self) -> Secret {
        let data = |name: &str| base64(&std::fs::read_to_string(self.file(name)).expect("a file"));
        let user = json!({ "client-certificate-data": data("admin.crt"), "client-key-data": data("admin.key") });
        kubeconfig_of(&self.url(), &self.authority_pem(), &user)
    }

    fn api(&self, who: Who) -> Api {
        Api { url: self.url(), authority: self.file("ca.crt"), who }
    }

    pub fn admin(&self) -> Api {
        self.api(Who::Certificate(self.file("admin.crt"), self.file("admin.key")))
    }

    /// The kubelet of that node: it may make and report on its own node, and nothing else.
    pub fn kubelet(&self, node: &str) -> Api {
        let file = format!("kubelet-{}", self.made.fetch_add(1, Ordering::Relaxed));
        self.issue(&file, &format!("system:node:{node}"), Some("system:nodes"));
        self.api(Who::Certificate(self.file(&format!("{file}.crt")), self.file(&format!("{file}.key"))))
    }

    pub fn by_token(&self, token: &str) -> Api {
        self.api(Who::Token(token.to_owned()))
    }

    pub fn nobody(&self) -> Api {
        self.api(Who::Nobody)
    }

    /// Gives the user `millwright` what the documentation says it needs: the objects in the first YAML block
    /// behind the heading.
    pub fn grant_millwright(&self) {
        let docs = std::fs::read_to_string(crate::golden::root().join("docs/hardware.md")).expect("the documentation");
        let section = docs.split("\n## Kubernetes\n").nth(1).expect("a section about Kubernetes");
        let block = section.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a YAML block");
        let block = block
            .replace("kind: ServiceAccount, name: millwright, namespace: kube-system", "kind: User, name: millwright");
        for object in block.split("---\n").filter(|part| !part.trim().is_empty()) {
            let object: Value = serde_yaml_ng::from_str(object).expect("YAML");
            let (kind, namespace) =
                (object["kind"].as_str().expect("a kind"), object["metadata"]["namespace"].as_str());
            let path = match (kind, namespace) {
                // the test's user is by token, not by service account
                ("ServiceAccount" | "Secret", _) => continue,
                (kind, Some(namespace)) => format!("{RBAC}/namespaces/{namespace}/{}s", kind.to_lowercase()),
                (kind, None) => format!("{RBAC}/{}s", kind.to_lowercase()),
            };
            self.admin().must("POST", &path, Some(&object));
        }
    }

    /// What kubeadm sets up in a cluster for hosts that join: `cluster-info`, open to all. And what its controllers
    /// and kubelets would do for them, and nobody does here: whoever has a bootstrap token may make nodes.
    pub fn set_up_joining(&self) {
        let admin = self.admin();
        let cluster = json!({ "server": self.url(), "certificate-authority-data": base64(&self.authority_pem()) });
        let info = json!({ "apiVersion": "v1", "kind": "Config", "clusters": [{ "name": "", "cluster": cluster }] });
        let info = json!({ "metadata": { "name": "cluster-info" }, "data": { "kubeconfig": info.to_string() } });
        admin.must("POST", "/api/v1/namespaces/kube-public/configmaps", Some(&info));
        let read = json!([{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"] }]);
        admin.must("POST", &format!("{RBAC}/namespaces/kube-public/roles"), Some(&role("cluster-info", &read)));
        let to_all = binding("cluster-info", "Role", &json!({ "kind": "User", "name": "system:anonymous" }));
        admin.must("POST", &format!("{RBAC}/namespaces/kube-public/rolebindings"), Some(&to_all));
        let make = json!([{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["create", "get"] }]);
        admin.must("POST", &format!("{RBAC}/clusterroles"), Some(&role("stand-in-for-kubelets", &make)));
        let group = json!({ "kind": "Group", "name": "system:bootstrappers:kubeadm:default-node-token" });
        let to_joining = binding("stand-in-for-kubelets", "ClusterRole", &group);
        admin.must("POST", &format!("{RBAC}/clusterrolebindings"), Some(&to_joining));
    }

    /// How often somebody did this, by the server's own audit log.
    pub fn audited(&self, user: &str, verb: &str, resource: &str) -> usize {
        let log = std::fs::read_to_string(self.file("audit.log")).unwrap_or_default();
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is = |event: &Value| {
            event["stage"] == "ResponseComplete"
                && event["user"]["username"] == user
                && event["verb"] == verb
                && event["objectRef"]["resource"] == resource
        };
        events.filter(is).count()
    }
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn role(name: &str, rules: &Value) -> Value {
    json!({ "metadata": { "name": name }, "rules": rules })
}

fn binding(name: &str, kind: &str, subject: &Value) -> Value {
    let mut subject = subject.clone();
    subject["apiGroup"] = "rbac.authorization.k8s.io".into();
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
    json!({ "metadata": { "name": name }, "roleRef": role, "subjects": [subject] })
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut guard) = guard {
            drop(guard.stdin.take());
            // an error here leaves the guard to itself, which is as good
            drop(guard.wait());
        }
    }
}

impl Api {
    /// Status and body; `null` where that is no JSON.
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.try_call(method, path, body).unwrap_or_else(|| panic!("curl got no answer to {method} {path}"))
    }

    /// [`Api::call`] that must succeed.
    #[track_caller]
    pub fn must(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (status, answer) = self.call(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    fn try_call(&self, method: &str, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        // by a file of settings on its input: a command line can be read by everybody
        let mut settings = format!(
            "url = \"{}{path}\"\nrequest = {method}\ncacert = \"{}\"\nheader = \"Content-Type: {kind}\"\n",
            self.url,
            self.authority.display()
        );
        match &self.who {
            Who::Nobody => {}
            Who::Token(token) => settings.push_str(&format!("header = \"Authorization: Bearer {token}\"\n")),
            Who::Certificate(certificate, key) => {
                settings.push_str(&format!("cert = \"{}\"\nkey = \"{}\"\n", certificate.display(), key.display()));
            }
        }
        if let Some(body) = body {
            let quoted = body.to_string().replace('\\', "\\\\").replace('"', "\\\"");
            settings.push_str(&format!("data = \"{quoted}\"\n"));
        }
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "60", "-w", "\n%{http_code}", "-K", "-"]);
        curl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut curl = curl.spawn().expect("curl is there (apt-get install -y --no-install-recommends curl)");
        curl.stdin.take().expect("its input").write_all(settings.as_bytes()).expect("written");
        let out = curl.wait_with_output().expect("curl ends");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n')?;
        let status: u16 = status.parse().ok().filter(|status| *status != 0)?;
        Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }
}

/// A kubeconfig with all that it needs inside.
pub fn kubeconfig(server: &str, authority_pem: &str, token: &str) -> Secret {
    kubeconfig_of(server, authority_pem, &json!({ "token": token }))
}

fn kubeconfig_of(server: &str, authority_pem: &str, user: &Value) -> Secret {
    let cluster = json!({ "server": server, "certificate-authority-data": base64(authority_pem) });
    let all = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "contexts": [{ "name": "here", "context": { "cluster": "c", "user": "u" } }],
        "clusters": [{ "name": "c", "cluster": cluster }], "users": [{ "name": "u", "user": user }],
    });
    Secret::new(all.to_string())
}

pub fn base64(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in text.as_bytes().chunks(3) {
        let at = |i: usize| usize::from(group.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        let four = [bits >> 18, bits >> 12 & 63, bits >> 6 & 63, bits & 63];
        out.extend(four.iter().take(group.len() + 1).map(|n| char::from(ALPHABET[*n])));
        out.extend(std::iter::repeat_n('=', 3 - group.len()));
    }
    out
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "kubernetes");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("an authority")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

fn program(name: &str, install: &str) -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    let found = found.unwrap_or_else(|| panic!("{name} is not on PATH; install it: {install}"));
    found.display().to_string()
}

fn server_program() -> String {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|c| !c.is_empty()).map(PathBuf::from).or_else(home);
    let cache = cache.expect("HOME is set");
    let program = cache.join("millwright-tests/kube-apiserver").join(VERSION).join("kube-apiserver");
    assert!(program.is_file(), "{} is missing; build it, once, with: scripts/kube-apiserver", program.display());
    program.display().to_string()
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_the_usual_one() {
        assert_eq!(["", "f", "fo", "foo", "foob"].map(super::base64), ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }
}
