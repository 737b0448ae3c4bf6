//! What a provider can do for a machine, as capability traits. Adapters implement some of them; stages
//! ask for the one they need. Nothing here touches the store, and nothing above sees an adapter.

mod bmc;
mod breaker;
mod capability;
mod error;
mod keyring;
mod maas;
mod netboot;
mod registry;
mod target;

pub use bmc::{Bmc, BmcState, Discovered, Management};
pub use breaker::{Breaker, jitter};
pub use capability::{
    BootControl, Chunk, ClusterCheck, ClusterControl, Command, Drain, DrainPass, EvictOptions, Exec, ExecProgress,
    ExecState, FailedInstall, ImageControl, Inspect, Inspection, Install, Joining, Membership, NetworkControl,
    NextPart, PowerControl, PowerState, Provider, RmaControl, Stream,
};
pub use error::{Ack, ProviderError, ProviderResult};
pub use keyring::{Because, Keyring, Pin, Swap};
pub use maas::{
    Changes, Commissioning, Deployment, HardwareSync, Maas, MaasAccess, MaasAccount, MaasClients, MaasDisk, MaasEvent,
    MaasInterface, MaasLink, MaasMachine, MaasSubnet, NewLink, NewMachine, NoMaas, PowerAccess, Release, ResultKind,
    ScriptResult, StorageLayout, Which, access_to, reach,
};
pub use netboot::{Netboot, NetbootOrder, Offer, Standing};
pub use registry::Providers;
pub use target::{By, Notes, Operation, Target};
