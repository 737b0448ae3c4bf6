//! Which image a name means. Whoever serves images is given this; who keeps the names is another matter.

use super::{Digest, ImageName};
use async_trait::async_trait;
use service::Service;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[async_trait]
pub trait Names: Send + Sync {
    /// `None`: nothing is called so.
    async fn digest_of(&self, name: &ImageName) -> Result<Option<Digest>, Box<dyn Error + Send + Sync>>;
}

/// Names as the server has them in its database.
pub struct NamesInDatabase(pub Service);

#[async_trait]
impl Names for NamesInDatabase {
    async fn digest_of(&self, name: &ImageName) -> Result<Option<Digest>, Box<dyn Error + Send + Sync>> {
        match self.0.get_image(name.as_str()).await {
            Ok(image) => Ok(Some(image.sha256.parse()?)),
            Err(e) if e.reason == domain::Reason::ImageNotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// Names that are gone with the process.
#[derive(Default)]
pub struct NamesInMemory(Mutex<BTreeMap<ImageName, Digest>>);

impl NamesInMemory {
    fn all(&self) -> MutexGuard<'_, BTreeMap<ImageName, Digest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers what the name meant before.
    pub fn set(&self, name: ImageName, digest: Digest) -> Option<Digest> {
        self.all().insert(name, digest)
    }

    pub fn forget(&self, name: &ImageName) -> Option<Digest> {
        self.all().remove(name)
    }
}

#[async_trait]
impl Names for NamesInMemory {
    async fn digest_of(&self, name: &ImageName) -> Result<Option<Digest>, Box<dyn Error + Send + Sync>> {
        Ok(self.all().get(name).copied())
    }
}
