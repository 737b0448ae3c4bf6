//! The wire: generated message and service types, and the descriptors they came from.
//! Nothing else lives here; mapping to the domain is the doors' work.
#![allow(clippy::all, clippy::pedantic, missing_docs)]

/// Customers' automation: machines, plans, runs.
pub mod baremetal {
    pub mod v1 {
        tonic::include_proto!("baremetal.v1");
    }
}

/// Operators: the engine, tokens, events, audit, and why.
pub mod millwright {
    pub mod v1 {
        tonic::include_proto!("millwright.v1");
    }
}

/// The descriptors of all files above, for reflection, JSON and the compatibility check.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
