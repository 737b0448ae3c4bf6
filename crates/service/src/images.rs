//! Images by name. The bytes are put and served by the boot service; here is what they are called.

use crate::change::Answer;
use crate::machines::required;
use crate::{Call, Page, PageRequest, Service};
use async_trait::async_trait;
use domain::id::check_name;
use domain::image::{ADDED, Image, ImageState, REMOVED};
use domain::{Error, Reason};
use std::sync::Arc;
use store::{Cause, Tx, TxResult, image};

/// What an upload has brought.
#[derive(Clone, Debug)]
pub struct NewImage {
    pub name: String,
    pub sha256: String,
    pub bytes: u64,
    pub kind: String,
}

/// Where the bytes of images are kept.
#[async_trait]
pub trait ImageBytes: Send + Sync {
    /// A name is gone that meant these bytes: they go, too, after a while, unless another one means them.
    async fn unnamed(&self, service: &Service, sha256: &str);
}

fn not_found(name: &str) -> Error {
    let message = format!("there is no image {name:?}; add it with 'millwright image add'");
    Error::new(Reason::ImageNotFound, message).with("name", name)
}

fn present(tx: &mut Tx<'_>, name: &str) -> TxResult<Image> {
    let found = tx.point(&image::by_name(name))?.filter(|image| image.state == ImageState::Present);
    Ok(found.ok_or_else(|| not_found(name))?)
}

impl Answer for Image {
    fn id(&self) -> String {
        self.name.clone()
    }

    fn again(tx: &mut Tx<'_>, _: &Call, id: &str) -> TxResult<Self> {
        Ok(tx.point(&image::by_name(id))?.ok_or_else(|| not_found(id))?)
    }
}

impl Service {
    /// Whom to tell when a name is gone. The first word counts.
    pub fn keeps_image_bytes(&self, bytes: Arc<dyn ImageBytes>) {
        drop(self.inner.image_bytes.set(bytes));
    }

    /// Bytes that are in the image store get a name. The same again: no change.
    pub async fn name_image(&self, call: &Arc<Call>, new: NewImage) -> Result<Image, Error> {
        check_name("name", &new.name)?;
        let (key, by) = (new.name.clone(), call.by.name.clone());
        self.change(call, &key, move |tx| {
            let there = image::get_for_update(tx, &new.name)?;
            let same = |there: &&Image| there.state == ImageState::Present && there.sha256 == new.sha256;
            if let Some(there) = there.as_ref().filter(same) {
                return Ok(there.clone());
            }
            let named = Image {
                name: new.name.clone(),
                state: ImageState::Present,
                version: 1,
                sha256: new.sha256.clone(),
                bytes: new.bytes,
                kind: new.kind.clone(),
                added_at: tx.now(),
                added_by: by.clone(),
            };
            image::put(tx, there.as_ref(), &named, &Cause::operator(&by, ADDED, ""))?;
            present(tx, &new.name)
        })
        .await
    }

    pub async fn get_image(&self, name: &str) -> Result<Image, Error> {
        let name = required("name", name)?;
        let found = self.store().point(image::by_name(&name)).await?;
        found.filter(|image| image.state == ImageState::Present).ok_or_else(|| not_found(&name))
    }

    pub async fn list_images(&self, request: &PageRequest) -> Result<Page<Image>, Error> {
        let size = request.size()?;
        let filter = image::FILTER.parse(&request.filter)?;
        let after = request.cursor("images")?;
        let items = self.store().read(move |tx| image::list(tx, &filter, &after, size + 1)).await?;
        Ok(request.page("images", items, size, |image| image.name.clone()))
    }

    /// Takes a name away, unless a workflow needs it.
    pub async fn remove_image(&self, call: &Arc<Call>, name: &str) -> Result<Image, Error> {
        let (name, by) = (required("name", name)?, call.by.name.clone());
        let key = name.clone();
        let removing = self.change(call, &key, move |tx| {
            let there = image::get_for_update(tx, &name)?.filter(|image| image.state == ImageState::Present);
            let there = there.ok_or_else(|| not_found(&name))?;
            if let Some(workflow) = image::workflow_with(tx, &name)? {
                let message = format!("workflow {workflow:?} names image {name:?}, and would have nothing to serve");
                return Err(Error::new(Reason::ImageInUse, message).with("workflow_id", workflow).into());
            }
            let gone = Image { state: ImageState::Removed, ..there.clone() };
            image::put(tx, Some(&there), &gone, &Cause::operator(&by, REMOVED, ""))?;
            Ok(gone)
        });
        let gone = removing.await?;
        if let Some(bytes) = self.inner.image_bytes.get() {
            bytes.unnamed(self, &gone.sha256).await;
        }
        Ok(gone)
    }

    /// Whether any name means these bytes.
    pub async fn is_named(&self, sha256: &str) -> Result<bool, Error> {
        let sha256 = sha256.to_owned();
        Ok(self.store().read(move |tx| image::named(tx, &sha256)).await? > 0)
    }
}
