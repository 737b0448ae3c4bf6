//! What is sealed opens with its key and with no other; keys are replaced while everything goes on; and a row that
//! somebody has touched does not open at all.

use crate::callers::caller_at;
use crate::credentials::bmc;
use crate::two_servers::Two;
use domain::credential::{BmcLogin, Credential};
use domain::{Reason, Secret};
use proto::millwright::v1 as mw;
use provider::{Keyring as _, ProviderError, Swap};
use service::{CallerLimits, NewCredential, PageRequest, SecretKey, SecretKeys, Service, Vault};
use testkit::fleet::{Database, Fleet, admin, quick};

fn key(n: u8) -> SecretKey {
    SecretKey::parse(&format!("{n:02x}").repeat(32)).expect("a key")
}

fn new(name: &str, password: &str) -> NewCredential {
    NewCredential {
        name: name.into(),
        kind: "bmc".into(),
        username: "admin".into(),
        password: Secret::new(password),
        ..NewCredential::default()
    }
}

fn login(password: &str) -> Credential {
    Credential::Bmc(BmcLogin { username: "admin".into(), password: Secret::new(password) })
}

/// A server's service that has these keys.
async fn with_keys(fleet: &Fleet, keys: SecretKeys) -> Service {
    let engine = fleet.engine(quick("test"), None);
    let (store, vault) = (fleet.store.clone(), Vault::new(fleet.store.clone(), keys));
    Service::with_vault(store, engine, fleet.providers(), CallerLimits::default(), vault).await.expect("a service")
}

async fn fleet(database: Database) -> Fleet {
    tokio::task::spawn_blocking(move || Fleet::new(database, 1)).await.expect("a fleet")
}

fn reason(e: &ProviderError) -> Reason {
    e.reason()
}

async fn wrong_missing_and_rotated(database: Database) {
    let fleet = fleet(database).await;
    let first = with_keys(&fleet, SecretKeys::given(key(1))).await;
    for n in 0..230 {
        first.set_credential(&admin(), new(&format!("c-{n:03}"), &format!("pass-{n}"))).await.expect("is set");
    }
    assert_eq!(first.vault().credential("c-007").await, Ok(login("pass-7")));
    let authority = first.agent_authority().await.expect("is founded").certificate().to_vec();
    // another key, or none: each credential says which key it needs, and everything else goes on
    let (wrong, none) = (SecretKeys::given(key(2)), SecretKeys::missing("set secrets.key_file"));
    for (keys, part) in [(wrong, format!("configured are: {}", key(2).id())), (none, "no key is configured".to_owned())]
    {
        let other = with_keys(&fleet, keys).await;
        let error = other.vault().credential("c-007").await.expect_err("does not open");
        assert_eq!(reason(&error), Reason::SecretKeyUnavailable);
        let told = error.to_string();
        assert!(told.contains(&format!("sealed under key {}", key(1).id())) && told.contains(&part), "{told}");
        assert_eq!(other.list_credentials(&PageRequest::default()).await.expect("lists").items.len(), 100);
        assert_eq!(other.vault().unopened().await, Ok(vec![(key(1).id().to_owned(), 231)]));
    }
    let none = with_keys(&fleet, SecretKeys::missing("set secrets.key_file")).await;
    let refused = none.set_credential(&admin(), new("x", "y")).await.expect_err("nothing to seal with");
    assert_eq!((refused.reason, refused.message.as_str()), (Reason::SecretKeyUnavailable, "set secrets.key_file"));
    // with the wrong key alone nothing can be sealed anew, and nothing is spoilt
    let wrong = with_keys(&fleet, SecretKeys::given(key(2))).await;
    let done = wrong.rotate_secret_key(&admin()).await.expect("tries");
    assert_eq!((done.resealed, done.sealed, done.left.len()), (0, 0, 100), "the first of those that are left");
    // a new key, and the old one beside it: in batches, and again without effect
    let both = with_keys(&fleet, SecretKeys::given(key(2)).with_previous(vec![key(1)])).await;
    assert_eq!(both.vault().credential("c-007").await, Ok(login("pass-7")), "the old one still opens");
    let done = both.rotate_secret_key(&admin()).await.expect("rotates");
    assert_eq!((done.key_id.as_str(), done.resealed, done.sealed, done.left.len()), (key(2).id(), 231, 231, 0));
    assert_eq!(both.rotate_secret_key(&admin()).await.expect("again").resealed, 0);
    let only_new = with_keys(&fleet, SecretKeys::given(key(2))).await;
    let opened = only_new.agent_authority().await.expect("the agents' authority is among them");
    assert_eq!(opened.certificate(), authority);
    for n in [0, 99, 100, 229] {
        assert_eq!(only_new.vault().credential(&format!("c-{n:03}")).await, Ok(login(&format!("pass-{n}"))));
    }
    assert!(first.vault().credential("c-007").await.is_err(), "and the old one opens nothing any more");
    // a lost key: what it sealed is set again
    let lost = with_keys(&fleet, SecretKeys::given(key(3))).await;
    lost.set_credential(&admin(), new("c-007", "fresh")).await.expect("is set");
    assert_eq!(lost.vault().credential("c-007").await, Ok(login("fresh")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_a_missing_and_a_rotated_key_on_sqlite() {
    wrong_missing_and_rotated(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_a_missing_and_a_rotated_key_on_postgres() {
    wrong_missing_and_rotated(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_touched_does_not_open() {
    let fleet = fleet(Database::Sqlite).await;
    let service = with_keys(&fleet, SecretKeys::given(key(1))).await;
    for (name, password) in [("a", "one"), ("b", "two"), ("c", "three")] {
        service.set_credential(&admin(), new(name, password)).await.expect("is set");
    }
    service.set_credential(&admin(), new("c", "four")).await.expect("is changed");
    let raw = rusqlite::Connection::open(fleet.database_file().expect("a file")).expect("opens");
    let old: Vec<u8> =
        raw.query_row("SELECT sealed FROM credentials WHERE name = 'c'", [], |r| r.get(0)).expect("read");
    service.set_credential(&admin(), new("c", "five")).await.expect("is changed");
    // another's row, a bit, its own past, and the row of a lesser kind
    raw.execute(
        "UPDATE credentials SET sealed = (SELECT sealed FROM credentials WHERE name = 'b') WHERE name = 'a'",
        [],
    )
    .expect("written");
    raw.execute("UPDATE credentials SET sealed = ?1 WHERE name = 'c'", [&old]).expect("written");
    for name in ["a", "c"] {
        let error = service.vault().credential(name).await.expect_err("does not open");
        assert_eq!(reason(&error), Reason::Internal, "{error}");
        assert!(error.to_string().contains("changed or damaged"), "{error}");
    }
    assert_eq!(service.vault().credential("b").await, Ok(login("two")));
    raw.execute("UPDATE credentials SET kind = 'ssh' WHERE name = 'b'", []).expect("written");
    assert!(service.vault().credential("b").await.is_err());
    // what does not open is not sealed anew either, and can be set again
    let next = with_keys(&fleet, SecretKeys::given(key(2)).with_previous(vec![key(1)])).await;
    let done = next.rotate_secret_key(&admin()).await.expect("rotates");
    assert_eq!((done.resealed, done.left.len()), (0, 3));
    next.set_credential(&admin(), new("a", "one")).await.expect("is set");
    assert_eq!(next.vault().credential("a").await, Ok(login("one")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_adapter_replaces_is_kept_and_on_record() {
    let fleet = fleet(Database::Sqlite).await;
    let service = with_keys(&fleet, SecretKeys::given(key(1))).await;
    service.set_credential(&admin(), new("a", "one")).await.expect("is set");
    assert_eq!(service.vault().replace("a", &login("one"), &login("two")).await, Ok(Swap::Kept));
    assert_eq!(service.vault().replace("a", &login("one"), &login("two")).await, Ok(Swap::Kept), "as it is");
    assert_eq!(service.vault().credential("a").await, Ok(login("two")));
    let missing = service.vault().replace("none", &login("x"), &login("y")).await.expect_err("is not there");
    assert_eq!(reason(&missing), Reason::CredentialMissing);
    assert_eq!(service.vault().credential("none").await.map_err(|e| e.reason()), Err(Reason::CredentialMissing));
    let other = service.vault().replace("a", &login("two"), &Credential::Kubeconfig(Secret::new("x"))).await;
    assert_eq!(other.map_err(|e| e.reason()), Err(Reason::InvalidField));
    let log = fleet.store.read(|tx| store::log_after(tx, 0, 100)).await.expect("the log");
    let moves: Vec<(&str, &str)> = log.iter().map(|r| (r.trigger.as_str(), r.actor.as_str())).collect();
    assert_eq!(moves, [("created", "system"), ("rotated", "keyring")]);
}

// two servers on one database, with the same key: what one was told the other uses at once
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_server_is_told_the_other_uses_at_once() {
    let two = Two::start().await;
    let secret = two.servers[0].token.clone();
    let [one, other] = [caller_at(&two.servers[0].url, &secret).await, caller_at(&two.servers[1].url, &secret).await];
    for n in 0..5 {
        one.credentials().set_credential(bmc("rack-1", &format!("pass-{n}"))).await.expect("is set");
        assert_eq!(
            testkit::fleet::vault(&two.servers[1].store).credential("rack-1").await,
            Ok(login(&format!("pass-{n}")))
        );
        let page = other.credentials().list_credentials(mw::ListCredentialsRequest::default()).await.expect("lists");
        assert_eq!(page.into_inner().credentials[0].version, n + 1);
    }
}

// what a slow one has read is no reason to lose what another has kept since
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_servers_that_replace_the_same_one_wins_and_the_others_are_told() {
    for database in [Database::Sqlite, Database::Postgres] {
        let fleet = fleet(database).await;
        let servers =
            [with_keys(&fleet, SecretKeys::given(key(1))).await, with_keys(&fleet, SecretKeys::given(key(1))).await];
        servers[0].set_credential(&admin(), new("a", "read")).await.expect("is set");
        let swaps =
            futures::future::join_all(
                (0..8_usize).map(|n| {
                    let vault = servers[n % 2].vault().clone();
                    async move {
                        (n, vault.replace("a", &login("read"), &login(&format!("new-{n}"))).await.expect("is told"))
                    }
                }),
            );
        let swaps = swaps.await;
        let kept: Vec<usize> = swaps.iter().filter(|(_, swap)| *swap == Swap::Kept).map(|(n, _)| *n).collect();
        assert_eq!(kept.len(), 1, "{database:?}: {swaps:?}");
        let winner = login(&format!("new-{}", kept[0]));
        assert_eq!(servers[1].vault().credential("a").await, Ok(winner.clone()), "{database:?}");
        // sealed under another key it is the same credential; set by an admin it is another
        let next = with_keys(&fleet, SecretKeys::given(key(2)).with_previous(vec![key(1)])).await;
        next.rotate_secret_key(&admin()).await.expect("rotates");
        assert_eq!(next.vault().replace("a", &winner, &login("later")).await, Ok(Swap::Kept), "{database:?}");
        next.set_credential(&admin(), new("a", "by-hand")).await.expect("is set");
        assert_eq!(next.vault().replace("a", &login("later"), &login("late")).await, Ok(Swap::Overtaken));
        assert_eq!(next.vault().credential("a").await, Ok(login("by-hand")), "{database:?}");
    }
}
