//! The wire: generated message and service types, and the descriptors they came from.
//! Nothing else lives here; mapping to the domain is the doors' work.
#![allow(clippy::all, clippy::pedantic, missing_docs)]

/// Customers' automation: machines, plans, runs.
pub mod baremetal {
    pub mod v1 {
        tonic::include_proto!("baremetal.v1");
    }
}

/// Node agents: their port has no other service.
pub mod agent {
    pub mod v1 {
        tonic::include_proto!("millwright.agent.v1");

        impl std::fmt::Debug for EnrollRequest {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "EnrollRequest {{ agent_version: {:?}, .. }}", self.agent_version)
            }
        }
    }
}

/// Operators: the engine, tokens, credentials, events, audit, and why.
pub mod millwright {
    pub mod v1 {
        tonic::include_proto!("millwright.v1");

        impl std::fmt::Debug for SetCredentialRequest {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "SetCredentialRequest {{ name: {:?}, kind: {:?}, .. }}", self.name, self.kind)
            }
        }

        impl std::fmt::Debug for IssuedNode {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "IssuedNode {{ node: {:?}, reason: {:?}, .. }}", self.node, self.reason)
            }
        }
    }
}

/// Fields that hold secrets, whatever the message: their values are never told, not even in an error.
pub const SECRET_FIELDS: [&str; 6] = ["password", "private_key", "passphrase", "kubeconfig", "user_data", "secret"];

/// The descriptors of all files above, for reflection, JSON and the compatibility check.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
