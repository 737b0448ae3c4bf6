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

#[cfg(test)]
mod tests {
    use super::*;
    use domain::TokenId;
    use domain::token::{self as tokens, Role};
    use futures::poll;
    use std::pin::pin;
    use store::{Ambient as _, Caller, Cause, Fate, Options, SystemAmbient, Way};
    use tokio::sync::Semaphore;

    /// Reads get to the database at once; their answers wait to be let back.
    struct HeldBack {
        read: Arc<Semaphore>,
        back: Arc<Semaphore>,
    }

    impl Way for HeldBack {
        fn there(&self, _: bool) -> BoxFuture<'static, Fate> {
            Box::pin(async { Fate::Through })
        }

        fn back(&self) -> BoxFuture<'static, ()> {
            let (read, back) = (self.read.clone(), self.back.clone());
            Box::pin(async move {
                read.add_permits(1);
                back.acquire().await.expect("open").forget();
            })
        }
    }

    /// Another server revokes the token while a question about it is out: who came before may still get in, who
    /// comes after does not.
    #[tokio::test]
    async fn a_call_is_judged_by_a_read_that_began_after_it_came() {
        let ambient = Arc::new(SystemAmbient::new());
        let store = Store::open(&Options::Memory, ambient.clone()).expect("opens");
        let id = TokenId::generate(ambient.uuid());
        let token = Token::new(id.clone(), "who", Role::Viewer, "mwt_", ambient.now(), "system");
        let cause = |what| Cause::operator("system", what, "");
        let digest = [7; 32];
        let new = move |tx: &mut store::Tx<'_>| token::insert(tx, &token, &hex(&digest), &cause(tokens::CREATED));
        store.write(&Caller::new("system"), "tokens", new).await.expect("inserts");

        let (read, back) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let way = HeldBack { read: read.clone(), back: back.clone() };
        let shared = store.simulated(ambient, Arc::new(way)).expect("shares");
        let lookups = Lookups::new(shared);
        let mut before = pin!(lookups.find(digest));
        assert!(poll!(before.as_mut()).is_pending());
        read.acquire().await.expect("open").forget();
        let gone = move |tx: &mut store::Tx<'_>| token::revoke(tx, &id, &cause(tokens::REVOKED)).map(drop);
        store.write(&Caller::new("system"), "tokens", gone).await.expect("revokes");
        let mut after = pin!(lookups.find(digest));
        assert!(poll!(after.as_mut()).is_pending());
        back.add_permits(2);
        let revoked = |answer: Answer| answer.expect("reads").expect("is there").revoked_at.is_some();
        assert!(!revoked(before.await), "read before it was revoked");
        assert!(revoked(after.await), "read anew");
    }
}
