//! `node.scrub_gpu`: the free memory of every GPU is overwritten and read back. Without a GPU it says so; it never
//! pretends.

use super::{Context, Done, Outcome, canceled, failed, in_background};
use crate::host::Host;
use domain::stage::FailureClass;
use proto::agent::v1::NodeScrubGpu;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Left alone for the driver, where nobody says how much.
const RESERVE_MIB: u32 = 256;

/// How a scrub has ended.
#[allow(dead_code, reason = "made by the crate that calls the driver")]
pub enum ScrubEnd {
    /// In words, and what was measured for each GPU.
    Done(String, Value),
    Canceled(Value),
    /// The memory did not hold what was written.
    Defect(String, Value),
    /// The driver did not do it: why.
    Failed(String),
}

/// Whether there is one that the driver knows.
pub fn has_gpu(host: &Host) -> bool {
    host.path("/dev/nvidiactl").exists()
}

pub async fn run(asked: &NodeScrubGpu, context: &Context) -> Outcome {
    if !has_gpu(&context.host) {
        return Ok(Done {
            message: "there is no GPU in this machine: nothing was scrubbed".to_owned(),
            detail: json!({"gpus": []}),
        });
    }
    let reserve = if asked.reserve_mib == 0 { RESERVE_MIB } else { asked.reserve_mib };
    let cancel = context.cancel.clone();
    let (say, mut said) = mpsc::unbounded_channel::<String>();
    let work =
        in_background(move || scrub(reserve, &|line| drop(say.send(line.to_owned())), &|| cancel.is_cancelled()));
    let tell = async {
        while let Some(line) = said.recv().await {
            context.printer.say(&line).await;
        }
    };
    let (end, ()) = tokio::join!(work, tell);
    match end? {
        ScrubEnd::Done(message, detail) => Ok(Done { message, detail }),
        ScrubEnd::Canceled(detail) => Err(canceled(detail)),
        ScrubEnd::Defect(message, detail) => {
            Err(super::Failed { code: "GPU_MEMORY_DEFECT", class: FailureClass::Hardware, message, detail })
        }
        ScrubEnd::Failed(message) => Err(failed("SCRUB_FAILED", FailureClass::NeedsOperator, message)),
    }
}

/// Overwrites the memory and reads it back. Lines that are said are few: one for each GPU and step.
fn scrub(_reserve_mib: u32, _say: &dyn Fn(&str), _canceled: &dyn Fn() -> bool) -> ScrubEnd {
    ScrubEnd::Failed("this agent cannot reach the GPU's driver: nothing was scrubbed".to_owned())
}

/// For each GPU, how many bytes of its memory are not as a scrub leaves them.
pub fn read_back(_canceled: &dyn Fn() -> bool) -> Result<Vec<(u32, u64)>, String> {
    Err("this agent cannot read GPU memory back".to_owned())
}
