//! `node.scrub_gpu`: the free memory of every GPU is overwritten and read back, in a process apart. Without a GPU it says
//! so; it never pretends.

use super::{Context, Done, Failed, Outcome, failed, in_background};
use crate::host::Host;
use domain::stage::FailureClass;
use gpu::apart::Apart;
use gpu::{Error, Options, Report};
use proto::agent::v1::NodeScrubGpu;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// What the driver of all GPUs of a machine may take.
const LIMIT: Duration = Duration::from_secs(3000);
/// Lines that wait to be told: few are said, one for each GPU and step.
const LINES_MAX: usize = 256;

/// Whether there is one that the driver knows.
fn has_driver(host: &Host) -> bool {
    host.path("/dev/nvidiactl").exists()
}

pub async fn run(asked: &NodeScrubGpu, context: &Context) -> Outcome {
    if !context.host.is_real() {
        // a folder that pretends to be a machine has no devices of its own
        return if has_driver(&context.host) {
            let message = "this is no real machine, and its GPUs cannot be reached: nothing was scrubbed";
            Err(failed("GPU_NOT_DRIVEN", FailureClass::NeedsOperator, message.to_owned()))
        } else {
            Ok(nothing_there("this is no real machine"))
        };
    }
    let mut options = Options::default();
    if asked.reserve_mib > 0 {
        options.reserve_bytes = u64::from(asked.reserve_mib) << 20;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (say, mut said) = mpsc::channel::<String>(LINES_MAX);
    let stopped = stop.clone();
    let work = in_background(context, move || {
        // a line that nobody has room for is not worth waiting for
        let mut tell =
            |progress: gpu::Progress| drop(say.try_send(format!("GPU {}: {}", progress.gpu, progress.message)));
        Apart::of_this_program(LIMIT).scrub(&options, &mut tell, &stopped)
    });
    let tell = async {
        while let Some(line) = said.recv().await {
            context.printer.say(&line).await;
        }
    };
    let canceled = async {
        context.cancel.cancelled().await;
        stop.store(true, Ordering::Relaxed);
        // the end itself is the scrub's
        std::future::pending::<()>().await;
    };
    let end = tokio::select! {
        (end, ()) = async { tokio::join!(work, tell) } => end?,
        () = canceled => return Err(super::canceled(Value::Null)),
    };
    match end {
        Ok(report) => Ok(Done { message: told(&report), detail: json!(report) }),
        Err(Error::NoGpu(why)) => Ok(nothing_there(&why)),
        Err(error) => Err(not_clean(&error)),
    }
}

fn nothing_there(why: &str) -> Done {
    Done {
        message: format!("there is no GPU in this machine ({why}): nothing was scrubbed"),
        detail: json!({"gpus": []}),
    }
}

fn told(report: &Report) -> String {
    let bytes: u64 = report.gpus.iter().map(|gpu| gpu.overwritten_bytes).sum();
    format!("{} GPU(s), {bytes} bytes overwritten and read back in {:.1} s", report.gpus.len(), report.seconds)
}

fn not_clean(error: &Error) -> Failed {
    let (code, class) = match error.code() {
        "GPU_MISMATCH" => ("GPU_MISMATCH", FailureClass::Hardware),
        "GPU_STUCK" => ("GPU_STUCK", FailureClass::Hardware),
        "GPU_IN_USE" => ("GPU_IN_USE", FailureClass::NeedsOperator),
        "GPU_MIG" => ("GPU_MIG", FailureClass::NeedsOperator),
        "GPU_NOT_COVERED" => ("GPU_NOT_COVERED", FailureClass::NeedsOperator),
        "GPU_NOT_DRIVEN" => ("GPU_NOT_DRIVEN", FailureClass::NeedsOperator),
        "CANCELED" => ("CANCELED", FailureClass::Transient),
        _ => ("GPU_ERROR", FailureClass::Transient),
    };
    let detail = match error {
        Error::NotClean(report) => json!(report),
        Error::NoGpu(_) | Error::NoDriver { .. } | Error::Canceled | Error::Broken(_) => Value::Null,
    };
    Failed { detail, ..failed(code, class, error.to_string()) }
}
