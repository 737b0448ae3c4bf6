//! What tests across crates share: launchers of real counterparts, and the surroundings held by hand.

pub mod ambient;
pub mod below;
pub mod canary;
pub mod fault_proxy;
pub mod fleet;
pub mod fuzz;
pub mod golden;
pub mod http_faults;
pub mod http_proxy;
pub mod ipmi_sim;
pub mod keyring;
pub mod kubeadm;
pub mod kubernetes;
pub mod lifecycles;
pub mod otlp;
pub mod postgres;
pub mod power;
pub mod redfish_responder;
pub mod samples;
pub mod scratch;
pub mod server;
pub mod sshd;
pub mod sushy;
pub mod tls;
pub mod udp_proxy;
pub mod web;
