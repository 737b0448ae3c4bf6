//! Sets where the machine boots from next. Read back, and taken back when the run does not succeed.

use super::stage::{At, Stage, acted, missing, settled};
use async_trait::async_trait;
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
        let is_set = match self.mode {
            // no override at all means the disk
            BootMode::Disk => seen.boot_override.is_none_or(|mode| mode == BootMode::Disk),
            BootMode::Pxe | BootMode::Http | BootMode::Cd => seen.boot_override == Some(self.mode),
        };
        if is_set { Seen::Done(format!("boots from {} next", self.mode)).into() } else { Seen::Clear.into() }
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
