//! The clock jumps by an hour either way and runs at double speed, under runs that wait for retries and for slow
//! machines; and it is set while no server runs. No run fails of it, nothing waits for an hour, and the log stays
//! in order, by number and by time.

use crate::fleet::text;
use crate::ledger::connect;
use crate::process::until;
use crate::server::Server;
use crate::site::Site;
use proto::millwright::v1::event_service_client::EventServiceClient;
use proto::millwright::v1::token_service_client::TokenServiceClient;
use proto::millwright::v1::{CreateTokenRequest, Event, GetMeRequest, WatchEventsRequest};
use testkit::below::Clocks;

const HOUR: i64 = 3600;
const ENOUGH: u64 = 30;
/// A step fails twice, so that its run waits for the next attempt.
const FAILS: &str = "sim.fault.netboot=fail:2";
const SLOW: &str = "sim.latency_ms=700";
/// Most of the time a call is in the air, and what it asks for is not done yet.
const SLOW_CALLS: [&str; 3] = ["sim.fault.netboot=slow:400", "sim.fault.repave=slow:400", "sim.fault.reboot=slow:400"];

impl Site {
    fn token(&self, server: &Server, ttl_seconds: i64) -> String {
        let name = format!("for-{ttl_seconds}");
        let request = CreateTokenRequest { name, role: "viewer".to_owned(), ttl_seconds, ..Default::default() };
        let admin = std::fs::read_to_string(&server.token_file).expect("the token");
        self.runtime.block_on(async {
            let mut tokens = TokenServiceClient::new(connect(&server.url, admin.trim()).await);
            tokens.create_token(request).await.expect("a token").into_inner().secret
        })
    }

    fn lets_in(&self, server: &Server, secret: &str) -> bool {
        self.runtime.block_on(async {
            TokenServiceClient::new(connect(&server.url, secret).await).get_me(GetMeRequest {}).await.is_ok()
        })
    }

    /// Numbers without a hole, and times that never go back.
    fn log_is_in_order(&self, server: &Server) {
        let admin = std::fs::read_to_string(&server.token_file).expect("the token");
        let events: Vec<Event> = self.runtime.block_on(async {
            let request = WatchEventsRequest { after: Some(0), no_follow: true, ..WatchEventsRequest::default() };
            let door = connect(&server.url, admin.trim()).await;
            let mut stream = EventServiceClient::new(door).watch_events(request).await.expect("a stream").into_inner();
            let mut events = Vec::new();
            while let Some(event) = stream.message().await.expect("an event") {
                events.push(event);
            }
            events
        });
        let at = |event: &Event| event.at.map(|at| (at.seconds, at.nanos));
        assert!(events.iter().map(|e| e.sequence).eq(1..=events.len() as u64), "no hole");
        assert!(events.is_sorted_by_key(at), "time never goes back");
    }
}

/// Waits until a run waits for its next attempt.
fn waits(server: &Server, run: &str) {
    until("the run waits for a retry", || {
        let executions = server.executions();
        let own = executions.iter().find(|e| text(e, "subject") == run);
        own.filter(|e| text(e, "status") == "waiting" || text(e, "stage") != "set-netboot").map(drop)
    });
}

#[test]
fn a_clock_that_jumps_or_races_fails_no_run_and_holds_nothing_up() {
    let (mut site, server) = Site::start();
    site.strict_plan(&server, "strict", 1800);
    let writers = site.writers(&server, 2);
    let token = site.token(&server, 600);
    let clocks = [
        ("forward", Clocks { ahead: HOUR, ..Clocks::TRUE }),
        ("back", Clocks { ahead: -HOUR, ..Clocks::TRUE }),
        ("wall-twice", Clocks { wall_rate: 2, ..Clocks::TRUE }),
        ("both-twice", Clocks { wall_rate: 2, monotonic_rate: 2, ahead: 0 }),
        ("true", Clocks::TRUE),
    ];
    for (name, clocks) in clocks {
        let waiting = site.run(&server, &format!("m-{name}-1"), &[FAILS], None);
        site.run(&server, &format!("m-{name}-2"), &[SLOW], Some("strict"));
        site.under_way(&format!("m-{name}-2"));
        waits(&server, &waiting);
        let before = site.below.readings();
        site.below.set_clocks(clocks);
        let stretch = site.tally.begin();
        site.tally.wait_for(stretch, "writes go on", |answers| answers.written >= ENOUGH);
        site.all_succeed(&server);
        let answers = site.tally.of(stretch);
        assert!(answers.refused() == 0 && answers.refused_reads.is_empty(), "{name}: {answers:?}");
        assert!(site.below.readings() > before, "the server reads the clock that the test holds");
        assert!(site.lets_in(&server, &token), "{name}: ten minutes have not passed");
    }
    site.log_is_in_order(&server);
    assert!(!server.process.err().contains("lease was lost"), "{}", server.process.err());
    writers.stop();
    let server = site.survives_a_kill(server);
    site.ends_whole(server);
}

#[test]
fn a_clock_that_is_set_while_no_server_runs_fails_no_run_and_holds_nothing_up() {
    let (mut site, mut server) = Site::start();
    site.strict_plan(&server, "strict", 1800);
    for (name, ahead) in [("back", -HOUR), ("forward", 0), ("far", HOUR)] {
        let waiting = site.run(&server, &format!("m-{name}-1"), &[FAILS], None);
        site.run(&server, &format!("m-{name}-2"), &[SLOW], Some("strict"));
        site.under_way(&format!("m-{name}-2"));
        waits(&server, &waiting);
        for n in 3..=5 {
            site.run(&server, &format!("m-{name}-{n}"), &SLOW_CALLS, Some("strict"));
        }
        server.kill();
        site.below.set_clocks(Clocks { ahead, ..Clocks::TRUE });
        server = site.start_again();
        site.all_succeed(&server);
        site.everything_is_there(&server);
        site.log_is_in_order(&server);
    }
    site.ends_whole(server);
}
