//! Images: kernels, initrds, boot loaders and disk images, kept by the digest of their bytes and served to machines
//! that boot or install.

mod http;
mod keeper;
mod kind;
mod loaders;
mod name;
mod names;
mod range;
mod store;
mod stream;
mod unnamed;

pub use http::{Images, Options};
pub use keeper::Keeper;
pub use kind::Kind;
pub use loaders::Loaders;
pub use name::{Digest, ImageName, Malformed};
pub use names::{Names, NamesInDatabase, NamesInMemory};
pub use range::{Part, part};
pub use store::{Adding, Image, Store, StoreError, Stored, Verified};
pub use unnamed::Naming;
