//! The controller's own accounts.

use crate::client::Client;
use crate::json;
use crate::places::{self, Seen};
use crate::task;
use domain::Secret;
use domain::stage::FailureClass;
use http::Method;
use provider::{Ack, ProviderError, ProviderResult};
use serde_json::json;

const ACCOUNTS_MAX: usize = 64;

pub async fn set_password(client: &Client, seen: &Seen, username: &str, password: &Secret) -> ProviderResult<Ack> {
    let missing = || client.lacks("account management");
    let service = seen.places.account_service.as_deref().ok_or_else(missing)?;
    let service = client.get_if_there(service).await?.ok_or_else(missing)?;
    let accounts = json::link(&service, "/Accounts").ok_or_else(missing)?;
    let accounts = places::members(client, &accounts, ACCOUNTS_MAX).await?;
    let Some(account) = accounts.iter().find(|account| json::text(account, "/UserName") == username) else {
        let why = format!("has no account {username:?}");
        return Err(client.refused(FailureClass::InvalidInput, &why));
    };
    let path = json::link(&json!({ "at": account }), "/at");
    let path = path.ok_or_else(|| client.bad_answer("an account does not say where it is"))?;
    let body = json!({ "Password": password.reveal() });
    let what = format!("set the password of account {username:?}");
    let done = task::carry_out(client, Method::PATCH, &path, &body, &what).await;
    // it may quote what it was sent
    done.map_err(|e| match e {
        ProviderError::Refused { class, reason, message } => {
            ProviderError::Refused { class, reason, message: password.blot(&message) }
        }
        ProviderError::Unknown { message } => ProviderError::Unknown { message: password.blot(&message) },
    })
}
