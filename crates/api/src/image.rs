//! `ImageService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open};
use domain::image::Image;
use proto::millwright::v1 as pb;
use proto::millwright::v1::image_service_server::ImageService;
use service::{PageRequest, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Images(pub Service);

fn shown(image: Image) -> pb::Image {
    pb::Image {
        name: image.name,
        sha256: image.sha256,
        bytes: image.bytes,
        kind: image.kind,
        added_at: Some(timestamp(image.added_at)),
        added_by: image.added_by,
    }
}

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(
        &self,
        request: Request<pb::ListImagesRequest>,
    ) -> Result<Response<pb::ListImagesResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_images(&request).await.map_err(to_status)?;
        let images = page.items.into_iter().map(shown).collect();
        Ok(Response::new(pb::ListImagesResponse { images, next_page_token: page.next_page_token }))
    }

    async fn get_image(&self, request: Request<pb::GetImageRequest>) -> Result<Response<pb::Image>, Status> {
        let (_, r) = open(request, |r| &r.name)?;
        Ok(Response::new(shown(self.0.get_image(&r.name).await.map_err(to_status)?)))
    }

    async fn remove_image(&self, request: Request<pb::RemoveImageRequest>) -> Result<Response<pb::Image>, Status> {
        let (call, r) = open(request, |r| &r.name)?;
        Ok(Response::new(shown(self.0.remove_image(&call, &r.name).await.map_err(to_status)?)))
    }
}
