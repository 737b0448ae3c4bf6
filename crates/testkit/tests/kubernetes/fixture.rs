//! The shared server with Millwright's rights given, and the nodes and pods that tests make there, each as who would
//! make it.

use domain::Secret;
use kube::{Cluster, NodeOf};
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testkit::kubernetes::{Api, Kubernetes, shared};

/// The name that messages have.
pub const NAME: &str = "prod";

pub fn server() -> &'static Kubernetes {
    static GRANTED: OnceLock<()> = OnceLock::new();
    let server = shared();
    GRANTED.get_or_init(|| {
        server.set_up_joining();
        server.grant_millwright();
        // the server's authorizer learns of rights by watches of its own, in the order in which they were given
        let millwright = server.by_token(&server.millwright_token);
        let last = ["/api/v1/nodes?limit=1", "/api/v1/namespaces/kube-public/configmaps/cluster-info"];
        let given = || last.iter().all(|path| millwright.call("GET", path, None).0 == 200);
        let in_time = (0..600).any(|_| {
            std::thread::park_timeout(Duration::from_millis(50));
            given()
        });
        assert!(in_time, "the server gives no rights");
    });
    server
}

pub fn cluster() -> Cluster {
    with_token(&server().millwright_token)
}

pub fn with_token(token: &str) -> Cluster {
    cluster_of(NAME, &server().kubeconfig(token)).expect("a kubeconfig")
}

/// For what never answers: the deadline is what ends it.
/// As long as a busy machine may need.
pub fn cluster_of(name: &str, kubeconfig: &Secret) -> provider::ProviderResult<Cluster> {
    Cluster::new(name, kubeconfig, Duration::from_secs(30))
}

pub fn impatient(kubeconfig: &Secret) -> Cluster {
    Cluster::with_limits(NAME, kubeconfig, Duration::from_millis(1500), Duration::from_secs(5)).expect("a kubeconfig")
}

/// A number that no other test of this process has.
pub fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A machine with a node of its own to be.
pub struct Machine {
    pub node: String,
    pub uuid: String,
    pub kubelet: Api,
}

impl Machine {
    pub fn new() -> Self {
        let n = number();
        let node = format!("node-{n}");
        let kubelet = server().kubelet(&node);
        Self { kubelet, node, uuid: format!("4d570000-1234-4abc-8def-{n:012x}") }
    }

    pub fn path(&self) -> String {
        format!("/api/v1/nodes/{}", self.node)
    }

    /// Registers, as its kubelet does when it starts.
    pub fn registered() -> Self {
        let this = Self::new();
        let status = json!({ "nodeInfo": { "systemUUID": this.uuid } });
        let node = json!({ "metadata": { "name": this.node }, "status": status });
        this.kubelet.must("POST", "/api/v1/nodes", Some(&node));
        this
    }

    /// What its kubelet reports about itself.
    pub fn reports(&self, ready: &str, reason: &str, message: &str) {
        let ready = json!({ "type": "Ready", "status": ready, "reason": reason, "message": message });
        let status = json!({ "status": { "conditions": [ready] } });
        self.kubelet.must("PATCH", &format!("{}/status", self.path()), Some(&status));
    }

    pub fn who(&self) -> NodeOf {
        NodeOf { system_uuid: self.uuid.clone(), names: vec![format!("machine-of-{}", self.node)] }
    }

    /// As the server has it, asked by somebody else.
    pub fn is_cordoned(&self) -> bool {
        server().admin().must("GET", &self.path(), None)["spec"]["unschedulable"] == true
    }
}

/// A namespace with pods on one node.
pub struct Workload<'m> {
    pub namespace: String,
    machine: &'m Machine,
}

impl<'m> Workload<'m> {
    pub fn on(machine: &'m Machine) -> Self {
        let namespace = format!("shop-{}", number());
        let body = json!({ "metadata": { "name": namespace } });
        server().admin().must("POST", "/api/v1/namespaces", Some(&body));
        Self { namespace, machine }
    }

    pub fn path(&self, pod: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace)
    }

    /// As it is called in what we report.
    pub fn name(&self, pod: &str) -> String {
        format!("{}/{pod}", self.namespace)
    }

    /// A running pod, bound to the node, with more in its metadata and spec.
    pub fn pod(&self, name: &str, metadata: &Value, spec: &Value) {
        let admin = server().admin();
        let container = json!({ "name": "c", "image": "registry.test/image" });
        let mut pod = json!({
            "metadata": { "name": name },
            "spec": { "nodeName": self.machine.node, "containers": [container] },
        });
        for (part, more) in [("metadata", metadata), ("spec", spec)] {
            let fields = more.as_object().expect("an object").clone();
            pod[part].as_object_mut().expect("an object").extend(fields);
        }
        admin.must("POST", &format!("/api/v1/namespaces/{}/pods", self.namespace), Some(&pod));
        self.phase(name, "Running");
    }

    pub fn phase(&self, name: &str, phase: &str) {
        // budgets protect what is ready; what is not may be evicted past them
        let ready = json!({ "type": "Ready", "status": if phase == "Running" { "True" } else { "False" } });
        let status = json!({ "status": { "phase": phase, "conditions": [ready] } });
        server().admin().must("PATCH", &format!("{}/status", self.path(name)), Some(&status));
    }

    /// Whether it is there, and whether it has been asked to go.
    pub fn is_ending(&self, name: &str) -> Option<bool> {
        let (status, pod) = server().admin().call("GET", &self.path(name), None);
        (status == 200).then(|| pod["metadata"]["deletionTimestamp"].is_string())
    }

    /// What a kubelet does once a pod's processes are gone.
    pub fn ended(&self, name: &str) {
        let options = json!({ "gracePeriodSeconds": 0 });
        self.machine.kubelet.must("DELETE", &self.path(name), Some(&options));
    }
}

/// The metadata of a pod that this makes and would make again.
pub fn owned(kind: &str) -> Value {
    let owner = json!({ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u-1", "controller": true });
    json!({ "ownerReferences": [owner], "labels": { "app": "web" } })
}
