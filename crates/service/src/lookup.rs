//! What a shared database knows of a token, asked on every call, since another server can revoke it at any
//! moment. Calls that come while the question is out share the next one: each is answered by a read that
//! began after it came, and a thousand at once cost a few.

use crate::access::{Digest, hex};
use domain::Error;
use domain::token::Token;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Store, token};

type Answer = Result<Option<Token>, Error>;

type Question = BoxFuture<'static, Answer>;

#[derive(Clone)]
pub(crate) struct Lookups {
    store: Store,
    asked: Arc<Mutex<HashMap<Digest, Asked>>>,
}

/// A read that several may share. Whoever of them is there drives it, and it ends with the last of them: one that
/// nobody drives would hold on to whatever it has taken.
struct Asked {
    /// Whether it is out: then it is too late to share it.
    out: Arc<AtomicBool>,
    answer: WeakShared<Question>,
}

/// Whoever leaves, answered or not, leaves nothing behind.
struct Asking<'a> {
    lookups: &'a Lookups,
    digest: Digest,
    out: Arc<AtomicBool>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut asked = self.lookups.lock();
        if asked.get(&self.digest).is_some_and(|there| Arc::ptr_eq(&there.out, &self.out)) {
            asked.remove(&self.digest);
        }
    }
}

impl Lookups {
    pub fn new(store: Store) -> Self {
        Self { store, asked: Arc::default() }
    }

    pub async fn find(&self, digest: Digest) -> Answer {
        let (answer, out) = self.question(digest);
        let _asking = Asking { lookups: self, digest, out };
        answer.await
    }

    /// One to share, if it has not gone out; else the next.
    fn question(&self, digest: Digest) -> (Shared<Question>, Arc<AtomicBool>) {
        let mut asked = self.lock();
        let before = asked.get(&digest).and_then(|there| Some((there.answer.upgrade()?, there.out.clone())));
        match before {
            Some((answer, out)) if !out.load(Ordering::Acquire) => (answer, out),
            before => {
                let (out, store) = (Arc::new(AtomicBool::new(false)), self.store.clone());
                let goes_out = out.clone();
                let question = async move {
                    // of each token one is out at a time
                    if let Some((before, _)) = before {
                        drop(before.await);
                    }
                    goes_out.store(true, Ordering::Release);
                    store.point(token::by_hash(&hex(&digest))).await
                };
                let answer = question.boxed().shared();
                if let Some(weak) = answer.downgrade() {
                    asked.insert(digest, Asked { out: out.clone(), answer: weak });
                }
                (answer, out)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Asked>> {
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

    /// Those who leave before they are answered leave no question, and nobody who comes later waits for theirs.
    #[tokio::test]
    async fn who_leaves_leaves_nothing_behind() {
        let lookups = Lookups::new(Store::open(&Options::Memory, Arc::new(SystemAmbient::new())).expect("opens"));
        let digest = [7; 32];
        for _ in 0..3 {
            // shared by two of whom both leave, one of them after it was looked at
            let (mut first, second) = (Box::pin(lookups.find(digest)), Box::pin(lookups.find(digest)));
            assert!(futures::poll!(&mut first).is_ready() || lookups.lock().len() == 1);
            drop((first, second));
            assert!(lookups.lock().is_empty());
        }
        let (answer, out) = lookups.question(digest);
        out.store(true, Ordering::Release);
        drop(answer);
        assert_eq!(lookups.find(digest).await, Ok(None), "the one before was given up, and holds up nobody");
        assert!(lookups.lock().is_empty());
    }

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
