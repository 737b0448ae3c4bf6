//! TFTP, for the first program that firmware loads; everything after it comes by HTTP. Files are only read, and only
//! those that [`Files`] knows by name.
//!
//! Our own and not a library's: the one that is kept up opens a socket of its own for every transfer, on whichever
//! interface, brings a second runtime for it, and bounds neither transfers nor tries; of what is left to take over,
//! there is little.

mod packet;
mod transfer;
mod window;

pub use packet::{FromClient, REQUEST_MAX, Request, Unserved};
pub use transfer::{Limits, Tftp};

use async_trait::async_trait;
use std::io;
use tokio::io::AsyncRead;

/// A file that is open.
pub struct Open {
    pub size: u64,
    /// Gives at least so many bytes; is read as the client takes them.
    pub bytes: Box<dyn AsyncRead + Send + Unpin>,
}

/// What is served. Names are looked up, never made into paths.
#[async_trait]
pub trait Files: Send + Sync + 'static {
    /// `None`: nothing is called so.
    async fn open(&self, name: &str) -> io::Result<Option<Open>>;
}

/// Where clients send their requests.
pub const PORT: u16 = 69;

#[cfg(test)]
mod tests;
