//! Redfish: one system behind one management controller, over HTTP and JSON.
//!
//! From the bottom up: [`trust`] judges certificates, [`wire`] carries one question and one answer, [`client`]
//! knows sessions, redirects, busy answers and tasks, [`places`] knows where things are behind this controller.
//! The rest is one file for each thing that can be asked, and [`quirks`] has what one vendor does otherwise.
//! Answers are read leniently ([`json`]): controllers leave out what the schema requires, and a number may be a text.

mod account;
mod bios;
mod boot;
mod client;
mod console;
mod describe;
mod events;
mod firmware;
mod identify;
mod json;
mod media;
mod places;
mod power;
mod quirks;
mod redfish;
mod sensors;
mod task;
mod trust;
mod wire;

pub use client::Timeouts;
pub use redfish::{Redfish, is_there};
pub use trust::{Trust, certificate_of};
