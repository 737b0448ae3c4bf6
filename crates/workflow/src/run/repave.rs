//! Installs an image. Long: accepted, then observed. What another operation is installing is left alone.

use super::stage::{At, Stage, acted, missing, settled};
use async_trait::async_trait;
use domain::stage::FailureClass;
use engine::{Aborted, Acted, Failure, Look, Seen};
use provider::{NextPart, PowerState};
use serde::{Deserialize, Serialize};

pub(super) struct Repave {
    pub image: String,
    pub user_data_ref: String,
}

/// The machine was off before this attempt acted: that it still is proves nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct WasOff {
    attempt: u32,
}

#[async_trait]
impl Stage for Repave {
    async fn look(&self, at: &At<'_>) -> Look {
        if let Some(image) = at.access.provider.image() {
            match image.next_part(at.target(), &at.op).await {
                Ok(NextPart::None) => {}
                Ok(NextPart::Waits(on)) => return at.waiting(on).into(),
                Ok(NextPart::Due) => return Seen::NextPart.into(),
                Err(e) => return at.unseen(e).into(),
            }
        }
        let seen = match at.inspect().await {
            Ok(seen) => seen,
            Err(seen) => return seen.into(),
        };
        if let Some(installing) = &seen.installing {
            if at.is_ours(&installing.operation) {
                let note =
                    if seen.install_note.is_empty() { String::new() } else { format!(": {}", seen.install_note) };
                return at.waiting(format!("{} to be installed{note}", installing.image)).into();
            }
            let way_out = if seen.install_note.is_empty() {
                format!(
                    "{}; if its run has ended and nothing will come of it, an admin forgets it with 'millwright machine \
                     repin {}'",
                    installing.operation,
                    at.target().machine_id
                )
            } else {
                seen.install_note.clone()
            };
            let message = format!("another installation is under way: {} by {way_out}", installing.image);
            return Seen::Failed(Failure::new("OTHER_INSTALLATION", FailureClass::Conflict, message)).into();
        }
        if let Some(failed) =
            seen.failed_install.as_ref().filter(|f| f.operation == at.op.key() && at.cx.may_have_acted)
        {
            return Seen::Failed(Failure::new("INSTALL_FAILED", failed.class, failed.why.clone())).into();
        }
        let off = seen.power == PowerState::Off;
        let before: Option<WasOff> = serde_json::from_value(at.cx.facts.clone()).ok();
        let was_off = before.is_some_and(|before| before.attempt == at.cx.attempt);
        match &seen.installed {
            Some(installed) if at.is_ours(&installed.operation) && installed.image == self.image => {
                Seen::Done(format!("{} installed", self.image)).into()
            }
            Some(_) | None if off && !was_off && !at.cx.acted => {
                let facts = Some(serde_json::json!(WasOff { attempt: at.cx.attempt }));
                Look { seen: Seen::Clear, output: Vec::new(), facts }
            }
            Some(_) | None if off && !was_off => {
                let message = "the machine lost power during the installation";
                Seen::Failed(Failure::new("POWER_LOST", FailureClass::Transient, message)).into()
            }
            Some(_) | None => Seen::Clear.into(),
        }
    }

    async fn act(&self, at: &At<'_>) -> Acted {
        match at.access.provider.image() {
            Some(image) => acted(image.install(at.target(), &self.image, &self.user_data_ref, &at.op).await),
            None => Acted::No(missing("image")),
        }
    }

    async fn abort(&self, at: &At<'_>) -> Result<Aborted, Failure> {
        let image = at.access.provider.image().ok_or_else(|| missing("image"))?;
        settled(image.abort_install(at.target(), &at.op).await).map(|()| Aborted::Stopped)
    }
}
