//! `TokenService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open};
use domain::Timestamp;
use domain::token::Token;
use proto::millwright::v1 as pb;
use proto::millwright::v1::token_service_server::TokenService;
use service::{NewToken, PageRequest, Service};
use tonic::{Request, Response, Status};

pub(crate) struct Tokens(pub Service);

/// In the place of a secret that an earlier answer to the same request has shown.
const ALREADY_SHOWN: &str = "SECRET_ALREADY_SHOWN";

fn token(t: &Token, now: Timestamp) -> pb::Token {
    pb::Token {
        token_id: t.id.to_string(),
        name: t.name.clone(),
        role: t.role.to_string(),
        customer_id: t.customer_id.clone(),
        prefix: t.prefix.clone(),
        state: t.state_text(now).to_owned(),
        created_at: Some(timestamp(t.created_at)),
        created_by: t.created_by.clone(),
        expires_at: t.expires_at.map(timestamp),
        revoked_at: t.revoked_at.map(timestamp),
        revoked_by: t.revoked_by.clone(),
    }
}

#[tonic::async_trait]
impl TokenService for Tokens {
    async fn list_tokens(
        &self,
        request: Request<pb::ListTokensRequest>,
    ) -> Result<Response<pb::ListTokensResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_tokens(&request).await.map_err(to_status)?;
        let now = self.0.now();
        Ok(Response::new(pb::ListTokensResponse {
            tokens: page.items.iter().map(|t| token(t, now)).collect(),
            next_page_token: page.next_page_token,
        }))
    }

    async fn create_token(
        &self,
        request: Request<pb::CreateTokenRequest>,
    ) -> Result<Response<pb::CreateTokenResponse>, Status> {
        let (call, r) = open(request, nothing)?;
        let new = NewToken { name: r.name, role: r.role, customer_id: r.customer_id, ttl_seconds: r.ttl_seconds };
        let created = self.0.create_token(&call, new).await.map_err(to_status)?;
        let reason = if created.secret.is_some() { "" } else { ALREADY_SHOWN };
        Ok(Response::new(pb::CreateTokenResponse {
            token: Some(token(&created.token, self.0.now())),
            secret: created.secret.unwrap_or_default(),
            reason: reason.to_owned(),
        }))
    }

    async fn revoke_token(&self, request: Request<pb::RevokeTokenRequest>) -> Result<Response<pb::Token>, Status> {
        let (call, r) = open(request, |r| &r.token_id)?;
        let revoked = self.0.revoke_token(&call, &r.token_id).await.map_err(to_status)?;
        Ok(Response::new(token(&revoked, self.0.now())))
    }

    async fn get_me(&self, request: Request<pb::GetMeRequest>) -> Result<Response<pb::Me>, Status> {
        let (call, _) = open(request, nothing)?;
        let by = &call.by;
        Ok(Response::new(pb::Me {
            token_id: by.token_id.to_string(),
            name: by.name.clone(),
            role: by.role.to_string(),
            customer_id: by.customer_id.clone(),
            expires_at: by.expires_at.map(timestamp),
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }
}
