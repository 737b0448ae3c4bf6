//! Access tokens: found by hash, taken back once, never doubled.

use crate::fixture::on_every_store;
use domain::filter::Filter;
use domain::token::{CREATED, REVOKED, Role, Token, TokenState};
use domain::{Reason, Timestamp, TokenId};
use store::{Cause, token};

fn make(n: u8) -> Token {
    let id = TokenId::from_text(format!("tok_{n}"));
    Token::new(id, &format!("token-{n}"), Role::Admin, "mwt_abcd", Timestamp::default(), "root")
}

fn created() -> Cause {
    Cause::operator("root", CREATED, "")
}

on_every_store!(a_token_is_found_by_its_hash, |store| async move {
    for n in 0..3 {
        let t = make(n);
        store.put("tokens", move |tx| token::insert(tx, &t, &format!("hash-{n}"), &created())).await.expect("inserts");
    }
    let found = store.point(token::by_hash("hash-1")).await.expect("reads").expect("is there");
    assert_eq!(Token { created_at: Timestamp::default(), ..found }, make(1));
    assert_eq!(store.point(token::by_hash("hash-9")).await, Ok(None));
    let others =
        |id: &'static str| move |tx: &mut store::Tx<'_>| token::count_other_admins(tx, &TokenId::from_text(id));
    assert_eq!(store.read(others("")).await, Ok(3));
    assert_eq!(store.read(others("tok_1")).await, Ok(2));
    let (t, other) = (make(9), make(1));
    let same_hash = store.put("tokens", move |tx| token::insert(tx, &t, "hash-1", &created())).await;
    let same_id = store.put("tokens", move |tx| token::insert(tx, &other, "hash-9", &created())).await;
    for refused in [same_hash, same_id] {
        let reason = refused.expect_err("is refused").reason;
        assert!(matches!(reason, Reason::Contention | Reason::Internal), "{reason:?}");
    }
    assert_eq!(store.read(others("")).await, Ok(3));
    assert_eq!(store.log_after(0).await.len(), 3, "what was refused left no row");
});

on_every_store!(a_token_is_revoked_once_and_on_record, |store| async move {
    let t = make(1);
    store.put("tokens", move |tx| token::insert(tx, &t, "hash-1", &created())).await.expect("inserts");
    let revoke =
        |tx: &mut store::Tx<'_>| token::revoke(tx, &TokenId::from_text("tok_1"), &Cause::operator("eve", REVOKED, ""));
    let first = store.put("tokens", revoke).await.expect("revokes").expect("is there");
    assert_eq!((first.state, first.revoked_by.as_str()), (TokenState::Revoked, "eve"));
    assert!(first.revoked_at.is_some());
    let again = store.put("tokens", revoke).await.expect("revokes").expect("is there");
    assert_eq!(again, first, "revoking again changes nothing");
    let log = store.log_after(0).await;
    let moves: Vec<(&str, &str)> = log.iter().map(|r| (r.from_state.as_str(), r.to_state.as_str())).collect();
    assert_eq!(moves, [("", "active"), ("active", "revoked")]);
    assert_eq!(log.iter().filter_map(token::revoked_by_row).collect::<Vec<_>>(), [TokenId::from_text("tok_1")]);
    assert!(!format!("{log:?}").contains("hash-1"), "no hash in the log");
    let gone =
        |tx: &mut store::Tx<'_>| token::revoke(tx, &TokenId::from_text("tok_9"), &Cause::operator("eve", REVOKED, ""));
    assert_eq!(store.put("tokens", gone).await, Ok(None));
});

on_every_store!(tokens_are_listed_newest_first, |store| async move {
    for n in 0..5 {
        let t = make(n);
        store.put("tokens", move |tx| token::insert(tx, &t, &format!("h{n}"), &created())).await.expect("inserts");
    }
    let ids = |list: Vec<Token>| list.iter().map(|t| t.id.to_string()).collect::<Vec<_>>();
    let first = store.read(|tx| token::list(tx, &Filter::Everything, "", 2)).await.expect("lists");
    assert_eq!(ids(first), ["tok_4", "tok_3"]);
    let rest = store.read(|tx| token::list(tx, &Filter::Everything, "tok_3", 9)).await.expect("lists");
    assert_eq!(ids(rest), ["tok_2", "tok_1", "tok_0"]);
    let named = token::FILTER.parse("name=token-2 AND role=admin AND state=active").expect("a filter");
    assert_eq!(ids(store.read(move |tx| token::list(tx, &named, "", 9)).await.expect("lists")), ["tok_2"]);
});
