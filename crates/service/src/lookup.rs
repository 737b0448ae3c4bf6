//! What a shared database knows of a token, asked on every call, since another server can revoke it at any
//! moment. Calls that come while the question is out share the next one: each is answered by a read that
//! began after it came, and a thousand at once cost a few.

use crate::access::{Digest, hex};
use domain::Error;
use domain::token::Token;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Store, token};

type Answer = Result<Option<Token>, Error>;

#[derive(Clone)]
pub(crate) struct Lookups {
    store: Store,
    asked: Arc<Mutex<HashMap<Digest, Question>>>,
}

/// One read, and those who share it. Whoever of them is there drives it: nobody is left waiting by one who left.
#[derive(Clone)]
struct Question {
    /// Whether it is out: then it is too late to share it.
    out: Arc<AtomicBool>,
    answer: Shared<BoxFuture<'static, Answer>>,
}

impl Lookups {
    pub fn new(store: Store) -> Self {
        Self { store, asked: Arc::default() }
    }

    pub async fn find(&self, digest: Digest) -> Answer {
        let question = {
            let mut asked = self.lock();
            match asked.get(&digest) {
                Some(there) if !there.out.load(Ordering::Acquire) => there.clone(),
                before => {
                    let next = self.ask(digest, before.map(|b| b.answer.clone()));
                    asked.insert(digest, next.clone());
                    next
                }
            }
        };
        let answer = question.answer.await;
        let mut asked = self.lock();
        if asked.get(&digest).is_some_and(|there| Arc::ptr_eq(&there.out, &question.out)) {
            asked.remove(&digest);
        }
        answer
    }

    /// A question that goes out when the one before it is answered: of each token one is out at a time.
    fn ask(&self, digest: Digest, before: Option<Shared<BoxFuture<'static, Answer>>>) -> Question {
        let (out, store) = (Arc::new(AtomicBool::new(false)), self.store.clone());
        let goes_out = out.clone();
        let answer = async move {
            if let Some(before) = before {
                drop(before.await);
            }
            goes_out.store(true, Ordering::Release);
            store.point(token::by_hash(&hex(&digest))).await
        };
        Question { out, answer: answer.boxed().shared() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Question>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
