//! Tasks that tests understand, in the place of the real ones: what a `host.exec` is asked by its arguments.
//!
//! Each appends a line to the file named first, which is how a test counts how often it was carried out.

use agent::setting::Execute;
use agent::task::{Context, Done, Failed, Outcome};
use domain::stage::FailureClass;
use proto::agent::v1::task::Kind;
use proto::agent::v1::{Fence, HostExec, Task};
use serde_json::json;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

pub fn played() -> Execute {
    Arc::new(|kind, context| Box::pin(async move { play(kind, context).await }))
}

async fn play(kind: Kind, context: Context) -> Outcome {
    let Kind::HostExec(exec) = kind else {
        return Ok(Done { message: "played".to_owned(), detail: json!({}) });
    };
    let [file, what, rest @ ..] = exec.args.as_slice() else { panic!("a file, and what to do") };
    let mut ledger = std::fs::OpenOptions::new().append(true).create(true).open(file).expect("the file opens");
    writeln!(ledger, "x").expect("written");
    match what.as_str() {
        "end" => {}
        "fault" => panic!("a planted fault"),
        "stubborn" => std::future::pending().await,
        // until it is canceled
        "hold" => {
            context.cancel.cancelled().await;
            return Err(Failed {
                code: "CANCELED",
                class: FailureClass::Transient,
                message: "held until now".to_owned(),
                detail: json!({"held": true}),
            });
        }
        // until there is a file beside the first
        "until" => {
            while !std::path::Path::new(&format!("{file}.go")).exists() && !context.cancel.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        "print" => {
            for part in rest {
                context.printer.say(part).await;
            }
        }
        "flood" => {
            let mebibytes: usize = rest[0].parse().expect("a number");
            for _ in 0..mebibytes * 16 {
                context.printer.bytes("stdout", vec![b'x'; 64 * 1024]).await;
            }
        }
        other => panic!("{other}: not known to the played task"),
    }
    Ok(Done { message: "done".to_owned(), detail: json!({"did": what}) })
}

pub fn task(id: &str, counter: u64, args: &[&str]) -> Task {
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    Task {
        task_id: id.to_owned(),
        fence: Some(Fence { epoch: 1, counter }),
        deadline: None,
        timeout_seconds: 600,
        kind: Some(Kind::HostExec(HostExec { sha256: String::new(), script: Vec::new(), args })),
    }
}
