//! What a shared database knows of a token, asked on every call, since another server can revoke it at any
//! moment. Calls that come while the question is out share the next one: each is answered by a read that
//! began after it came, and a thousand at once cost a few.

use crate::access::{Digest, hex};
use domain::token::Token;
use domain::{Error, Reason};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Store, token};
use tokio::sync::oneshot;

type Answer = Result<Option<Token>, Error>;
type Waiting = Vec<oneshot::Sender<Answer>>;

#[derive(Clone)]
pub(crate) struct Lookups {
    store: Store,
    /// Tokens that a question is out for, and who waits for the next.
    asked: Arc<Mutex<HashMap<Digest, Waiting>>>,
}

impl Lookups {
    pub fn new(store: Store) -> Self {
        Self { store, asked: Arc::default() }
    }

    pub async fn find(&self, digest: Digest) -> Answer {
        let (answer, answered) = oneshot::channel();
        let first = {
            let mut asked = self.lock();
            match asked.get_mut(&digest) {
                Some(next) => {
                    next.push(answer);
                    None
                }
                None => {
                    asked.insert(digest, Vec::new());
                    Some(answer)
                }
            }
        };
        if let Some(answer) = first {
            // on its own: whoever gives up waiting leaves the others theirs
            tokio::spawn(self.clone().ask(digest, vec![answer]));
        }
        answered.await.unwrap_or_else(|_| Err(Error::new(Reason::StoreUnavailable, "the token was not looked up")))
    }

    async fn ask(self, digest: Digest, mut waiting: Waiting) {
        while !waiting.is_empty() {
            let found = self.store.point(token::by_hash(&hex(&digest))).await;
            waiting.into_iter().for_each(|answer| drop(answer.send(found.clone())));
            let mut asked = self.lock();
            waiting = asked.get_mut(&digest).map(std::mem::take).unwrap_or_default();
            if waiting.is_empty() {
                asked.remove(&digest);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Waiting>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
