//! From a bundle to an identity: lost answers, strangers, used tokens, wrong clocks.

use crate::Bench;
use crate::stand_in::{Seen, StandIn, TOKEN, hold};
use agent::enrolment::{self, Refused, enrol};
use agent::identity::Identity;
use domain::{Secret, Timestamp};

fn keys(seen: Vec<Seen>) -> Vec<String> {
    let key = |seen| if let Seen::Enroll(key) = seen { Some(key) } else { None };
    seen.into_iter().filter_map(key).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_asked_for_again_with_the_same_key() {
    let mut bench = Bench::held();
    bench.server.set().lost_answers = 2;
    let pending = bench.state("enrolment.json");
    bench.server.set().on_token = Some(Box::new(move || {
        let kept = std::fs::read_to_string(&pending).expect("the key is on disk before the token is sent");
        assert!(kept.contains("PRIVATE KEY") && !kept.contains(TOKEN), "and the token is not beside it");
    }));
    let bundle = bench.server.bundle();
    for _ in 0..2 {
        let refused = enrol(&bench.setting, &bundle).await.err().expect("no answer");
        assert!(matches!(refused, Refused::Later(_)), "{refused}");
        assert!(Identity::load(&bench.setting.folder).expect("it reads").is_none());
    }
    let identity = enrol(&bench.setting, &bundle).await.expect("enrolled");
    let keys = keys(bench.server.so_far());
    assert_eq!(keys, vec![identity.key.fingerprint(); 3], "one key, as the server counts keys");
    assert_eq!((identity.node_id.as_str(), identity.session, identity.epoch), ("node-1", 100, 1));
    assert_eq!(bench.identity().key.fingerprint(), identity.key.fingerprint());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_right_after_enrolling_has_enrolled() {
    let mut bench = Bench::held();
    let first = bench.enrol().await;
    // it has not tidied up: the bundle is there at the next start
    let again = bench.enrol().await;
    assert_eq!(first.key.fingerprint(), again.key.fingerprint());
    assert_eq!(keys(bench.server.so_far()).len(), 1, "the token is not sent again");
    enrolment::tidy(&bench.setting.folder);
    assert_eq!(bench.setting.folder.names().expect("listed"), ["identity.json"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_bundle_makes_a_new_key() {
    let bench = Bench::held();
    let first = bench.enrol().await;
    bench.server.set().tokens.insert("another".to_owned(), None);
    let mut bundle = bench.server.bundle();
    bundle.token = Secret::new("another");
    let second = enrol(&bench.setting, &bundle).await.expect("enrolled");
    assert_ne!(first.key.fingerprint(), second.key.fingerprint());
    assert_eq!(bench.identity().key.fingerprint(), second.key.fingerprint());
}

#[tokio::test(start_paused = true)]
async fn a_token_of_another_key_or_of_nobody_is_refused_for_good_and_says_what_to_do() {
    let bench = Bench::held();
    bench.server.set().tokens.insert(TOKEN.to_owned(), Some("another key".to_owned()));
    let used = enrol(&bench.setting, &bench.server.bundle()).await.err().expect("refused");
    bench.server.set().tokens.clear();
    let unknown = enrol(&bench.setting, &bench.server.bundle()).await.err().expect("refused");
    for refused in [used, unknown] {
        let Refused::Final(why) = refused else { panic!("{refused}") };
        assert!(why.contains("millwright node rebootstrap node-1"), "{why}");
        assert!(!why.contains(TOKEN), "a server that quotes the token is not passed on: {why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stranger_never_gets_the_token() {
    let mut bench = Bench::held();
    // of a server with another authority
    let bundle = StandIn::start().bundle();
    let refused = enrol(&bench.setting, &bundle).await.err().expect("refused");
    let Refused::Untrusted(why) = refused else { panic!("{refused}") };
    assert!(why.contains("is not the server"), "{why}");
    assert!(keys(bench.server.so_far()).is_empty(), "the token was sent");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_name_is_refused_whatever_address_was_dialed() {
    hold();
    let server = StandIn::named("server.example");
    let wall = server.now();
    let mut bench = Bench::with(server, wall);
    let refused = enrol(&bench.setting, &bench.server.bundle()).await.err().expect("refused");
    assert!(matches!(refused, Refused::Untrusted(_)), "{refused}");
    assert!(keys(bench.server.so_far()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn machines_with_wrong_clocks_enrol_and_connect() {
    hold();
    for wrong in [-2_000_000_000i64, -86_400, 0, 86_400, 60 * 86_400] {
        let server = StandIn::start();
        let wall = Timestamp::from_micros(server.now().micros() + wrong * 1_000_000);
        let mut bench = Bench::with(server, wall);
        bench.enrol().await;
        let running = bench.run();
        bench.server.confirmed().await;
        let beat = bench.server.heartbeat().await;
        let told = beat.clock.expect("its clock");
        assert_eq!(told.seconds, wall.micros() / 1_000_000, "what it believes, for the server to judge");
        running.stop().await;
    }
}
