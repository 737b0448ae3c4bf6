//! The specification's own samples, as the document has them.

use serde_json::{Value, json};

pub fn sample_machine() -> Value {
    json!({
        "machine_id": "m-123",
        "labels": {"env": "prod", "role": "worker", "provider": "dc-1"},
        "spec": {
            "ssh_endpoint": "10.20.30.40:22",
            "bmc_endpoint": "10.20.30.41",
            "target_cluster_ref": "cluster-a",
            "mac_addresses": ["aa:bb:cc:dd:ee:ff"]
        },
        "status": {
            "phase": "READY",
            "conditions": [
                {"type": "Reachable", "status": true, "reason": "PingOK"},
                {"type": "BMCReachable", "status": true, "reason": "RedfishOK"},
                {"type": "InCustomerCluster", "status": false, "reason": "NotJoined"}
            ],
            "active_run_id": ""
        }
    })
}

pub fn sample_plan() -> Value {
    json!({
        "plan_id": "plan-repave-ubuntu-2204-v1",
        "display_name": "Repave Ubuntu 22.04 + Join Cluster",
        "steps": [
            {"name": "set-netboot", "timeout_seconds": 60, "max_retries": 2, "netboot": {"mode": "PXE"}},
            {"name": "repave-os", "timeout_seconds": 1800, "max_retries": 1, "repave": {"image": "ubuntu-22.04"}},
            {"name": "reboot", "timeout_seconds": 300, "max_retries": 2, "reboot": {"mode": "bmc"}},
            {"name": "join-cluster", "timeout_seconds": 600, "max_retries": 1, "join": {"cluster_ref": "cluster-a"}},
            {"name": "verify", "timeout_seconds": 300, "max_retries": 0, "verify": {"cluster_ref": "cluster-a"}}
        ]
    })
}
