//! What firmware loads by TFTP: images, by their names.

use super::{ImageName, Names, Store};
use crate::tftp::{Files, Open};
use async_trait::async_trait;
use std::io;
use std::sync::Arc;

pub struct Loaders {
    pub store: Arc<Store>,
    pub names: Arc<dyn Names>,
}

#[async_trait]
impl Files for Loaders {
    async fn open(&self, name: &str) -> io::Result<Option<Open>> {
        // some firmware asks for what it was told as if it were a path
        let Ok(name) = name.trim_start_matches('/').parse::<ImageName>() else { return Ok(None) };
        let Some(digest) = self.names.digest_of(&name).await.map_err(io::Error::other)? else { return Ok(None) };
        let store = self.store.clone();
        let found = tokio::task::spawn_blocking(move || store.image(&digest)).await.map_err(io::Error::other)?;
        let image = found.map_err(io::Error::other)?;
        Ok(image
            .map(|image| Open { size: image.bytes(), bytes: Box::new(tokio::fs::File::from_std(image.into_file())) }))
    }
}
