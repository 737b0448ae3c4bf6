//! Sets where the machine boots from next, or from now on. Read back, and taken back when the run does not succeed.

use super::stage::{At, Stage, acted, missing, settled};
use async_trait::async_trait;
use domain::hardware::BootOverride;
use domain::plan::BootMode;
use engine::{Acted, Failure, Look, Seen};

pub(super) struct Netboot {
    pub mode: BootMode,
    pub persistent: bool,
}

#[async_trait]
impl Stage for Netboot {
    async fn look(&self, at: &At<'_>) -> Look {
        let seen = match at.inspect().await {
            Ok(seen) => seen,
            Err(seen) => return seen.into(),
        };
        let wanted = BootOverride { mode: self.mode, persistent: self.persistent };
        let is_set = match seen.boot_override {
            Some(set) => set == wanted,
            // no override at all means the disk
            None => self.mode == BootMode::Disk,
        };
        let when = if self.persistent { "from now on" } else { "next" };
        if is_set { Seen::Done(format!("boots from {} {when}", self.mode)).into() } else { Seen::Clear.into() }
    }

    async fn act(&self, at: &At<'_>) -> Acted {
        match at.access.provider.boot() {
            Some(boot) => acted(boot.set_boot(at.target(), self.mode, self.persistent, &at.op).await),
            None => Acted::No(missing("boot")),
        }
    }

    async fn undo(&self, at: &At<'_>) -> Result<(), Failure> {
        let boot = at.access.provider.boot().ok_or_else(|| missing("boot"))?;
        settled(boot.clear_boot(at.target(), &at.op).await)
    }
}
