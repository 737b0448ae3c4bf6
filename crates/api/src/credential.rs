//! `CredentialService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open, open_unhashed};
use domain::Secret;
use domain::credential::CredentialRecord;
use domain::lifecycle::State as _;
use proto::millwright::v1 as pb;
use proto::millwright::v1::credential_service_server::CredentialService;
use service::{CredentialView, NewCredential, PageRequest, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Credentials(pub Service);

fn credential(c: &CredentialRecord, machines: u64) -> pb::Credential {
    pb::Credential {
        name: c.name.clone(),
        kind: c.kind.as_str().to_owned(),
        state: c.state.as_str().to_owned(),
        version: c.version,
        key_id: c.key_id.clone(),
        machines,
        created_at: Some(timestamp(c.created_at)),
        created_by: c.created_by.clone(),
        updated_at: Some(timestamp(c.updated_at)),
        updated_by: c.updated_by.clone(),
    }
}

fn shown(view: &CredentialView) -> pb::Credential {
    credential(&view.record, view.machines)
}

#[tonic::async_trait]
impl CredentialService for Credentials {
    async fn set_credential(
        &self,
        request: Request<pb::SetCredentialRequest>,
    ) -> Result<Response<pb::Credential>, Status> {
        // a plain hash of a password would tell it to whoever can guess: the service makes another
        let (call, r) = open_unhashed(request, |r| &r.name)?;
        let new = NewCredential {
            name: r.name,
            kind: r.kind,
            username: r.username,
            password: Secret::new(r.password),
            private_key: Secret::new(r.private_key),
            passphrase: Secret::new(r.passphrase),
            kubeconfig: Secret::new(r.kubeconfig),
            certificates: r.certificates,
            user_data: Secret::new(r.user_data),
            api_key: Secret::new(r.api_key),
        };
        let set = self.0.set_credential(&call, new).await.map_err(to_status)?;
        Ok(Response::new(shown(&set)))
    }

    async fn list_credentials(
        &self,
        request: Request<pb::ListCredentialsRequest>,
    ) -> Result<Response<pb::ListCredentialsResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_credentials(&request).await.map_err(to_status)?;
        Ok(Response::new(pb::ListCredentialsResponse {
            credentials: page.items.iter().map(shown).collect(),
            next_page_token: page.next_page_token,
        }))
    }

    async fn delete_credential(
        &self,
        request: Request<pb::DeleteCredentialRequest>,
    ) -> Result<Response<pb::Credential>, Status> {
        let (call, r) = open(request, |r| &r.name)?;
        let deleted = self.0.delete_credential(&call, &r.name, r.force).await.map_err(to_status)?;
        Ok(Response::new(shown(&deleted)))
    }

    async fn rotate_secret_key(
        &self,
        request: Request<pb::RotateSecretKeyRequest>,
    ) -> Result<Response<pb::RotateSecretKeyResponse>, Status> {
        let (call, _) = open(request, nothing)?;
        let done = self.0.rotate_secret_key(&call).await.map_err(to_status)?;
        Ok(Response::new(pb::RotateSecretKeyResponse {
            key_id: done.key_id,
            resealed: done.resealed,
            sealed: done.sealed,
            left: done.left.iter().map(|record| credential(record, 0)).collect(),
        }))
    }
}
