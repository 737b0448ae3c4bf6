//! Agents that are killed and stopped in the middle of tasks. What a script did is read from the file that it leaves; how
//! its task ended from the server's record of every move.
//!
//! `MILLWRIGHT_AGENT_KILLS=500` for as many kills, over all agents together.

use crate::agents_clock::Leaping;
use crate::agents_site::{Script, Site, eventually};
use crate::fleet::text;
use std::time::Duration;

const AGENTS: usize = 4;

fn kills() -> usize {
    std::env::var("MILLWRIGHT_AGENT_KILLS").ok().map_or(40, |n| n.parse().expect("MILLWRIGHT_AGENT_KILLS is a number"))
}

/// The moments at which agents are killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// As soon as the task is ordered: it may not have been taken yet.
    Ordered,
    /// It has left its mark, and is at work.
    Started,
    /// About when its result is on its way.
    Ending,
}

const MOMENTS: [Moment; 5] = [Moment::Started, Moment::Ending, Moment::Ordered, Moment::Started, Moment::Ending];

#[test]
fn killed_in_mid_task_every_outcome_is_told_once_and_no_task_starts_twice() {
    let site = Site::new();
    let server = site.start();
    let script = Script::new(&site);
    let each = kills().div_ceil(AGENTS);
    let outcomes: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AGENTS)
            .map(|n| {
                let (site, server, script) = (&site, &server, &script);
                scope.spawn(move || {
                    let name = format!("gpu-{n}");
                    let (machine, mut agent) = site.active(server, &name);
                    machine.allow(&script.file);
                    let mut tasks = Vec::new();
                    for kill in 0..each {
                        let (label, moment) = (format!("{name}-{kill}"), MOMENTS[kill % MOMENTS.len()]);
                        // longer than it takes to kill it, shorter than anybody waits
                        let lasts = if moment == Moment::Ending { "0.05" } else { "1" };
                        let task = server.exec(&name, &script.file, &[&script.effects(&label), lasts]);
                        match moment {
                            Moment::Ordered => std::thread::park_timeout(Duration::from_millis(kill as u64 % 7)),
                            Moment::Started => script.wait_for(&label, "started"),
                            Moment::Ending => {
                                script.wait_for(&label, "ended");
                                std::thread::park_timeout(Duration::from_millis(kill as u64 * 3 % 40));
                            }
                        }
                        agent.kill();
                        agent = machine.run();
                        let ended = eventually("the task ends", || {
                            Some(server.task(&task))
                                .filter(|t| ["done", "failed", "expired"].contains(&text(t, "status")))
                        });
                        tasks.push((label, task, moment, ended));
                    }
                    // nothing comes afterwards either: one end each, and it is the one that was seen
                    for (label, task, moment, ended) in &tasks {
                        let moves = server.moves(&name, task);
                        let ends = moves.iter().filter(|to| *to == "done" || *to == "failed").count();
                        assert_eq!(
                            (ends, moves.last().map(String::as_str)),
                            (1, ended["status"].as_str()),
                            "{moves:?}"
                        );
                        let starts = script.count(label, "started");
                        match (text(ended, "status"), ended["result"]["code"].as_str()) {
                            ("done", _) => assert_eq!(starts, 1, "{moment:?}: {ended:#}"),
                            ("failed", Some("INTERRUPTED")) => assert!(starts <= 1, "{moment:?}: {starts} starts"),
                            _ => panic!("{moment:?}: {ended:#}"),
                        }
                        assert_eq!(server.task(task), *ended, "it stays as it ended");
                    }
                    server.node_is(&name, "active");
                    tasks.into_iter().map(|(.., ended)| text(&ended, "status").to_owned()).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    assert_eq!(outcomes.len(), each * AGENTS);
    for status in ["done", "failed"] {
        assert!(outcomes.iter().any(|o| o == status), "no kill has led to {status}: they all come at the same moment");
    }
}

#[test]
fn stopped_past_its_lease_a_task_is_handed_out_again_and_carried_out_once() {
    let site = Site::new();
    let time = Leaping::new(&site, "server");
    let launch = time.under(&site.launch);
    let server = launch.start();
    let script = Script::new(&site);
    let (machine, agent) = site.active(&server, "gpu-1");
    machine.allow(&script.file);
    let task = server.exec("gpu-1", &script.file, &[&script.effects("t"), "wait"]);
    script.wait_for("t", "started");
    let first = server.task_is(&task, "dispatched");
    agent.freeze();
    // a minute and a half goes by on the server
    time.leap(90);
    let again = eventually("it is to be handed out again", || {
        Some(server.task(&task)).filter(|t| t["requeues"] != first["requeues"])
    });
    assert_eq!(script.count("t", "ended"), 0);
    agent.signal("CONT");
    eventually("it is handed out under a higher fence", || {
        Some(server.task(&task)).filter(|t| t["status"] == "dispatched" && fence(t) > fence(&first))
    });
    script.go("t");
    let done = server.task_is(&task, "done");
    assert!(fence(&done) > fence(&first), "{again:#}\n{done:#}");
    assert_eq!((script.count("t", "started"), script.count("t", "ended")), (1, 1));
    assert_eq!(server.moves("gpu-1", &task).iter().filter(|to| *to == "done").count(), 1);
}

fn fence(task: &serde_json::Value) -> (u64, u64) {
    let fence = text(task, "fence").split_once('.').expect("epoch and counter");
    (fence.0.parse().expect("a number"), fence.1.parse().expect("a number"))
}
