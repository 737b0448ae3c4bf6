//! Installing by way of a MAAS: what is there is released, with its disks erased as the site has it, and the image is
//! deployed. It has parts, each begun by an act of its own once MAAS is done with the one before. Which part it is in is
//! durable before anything is told, since MAAS forgets what it knew of a machine with every release.

use crate::find::Found;
use crate::steps::{BOOTED, MaasProvider, is_busy};
use async_trait::async_trait;
use domain::credential::Credential;
use domain::maas::{
    ALLOCATED, DEPLOYED, DEPLOYING, DISK_ERASING, FAILED_DEPLOYMENT, FAILED_DISK_ERASING, READY, RELEASING,
    RELEASING_FAILED,
};
use domain::stage::FailureClass;
use domain::{Reason, Secret};
use provider::{
    Ack, Because, Deployment, FailedInstall, ImageControl, Install, MaasMachine, NextPart, Operation, Pin,
    ProviderError, ProviderResult, Release, Swap, Target,
};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::Instant;

/// On a deployed machine: the operation that deployed it, and what with. Gone with its deployment.
const OPERATION: &str = "millwright-operation";
const IMAGE: &str = "millwright-image";
const AGENT_NAME: &str = "millwright";
/// A part that came to nothing is not begun again at once.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
const ACTS_MAX: usize = 50_000;

/// The installation that was begun last on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Begun {
    part: Part,
    operation: String,
    image: String,
    system_id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It may have been told to release what is there.
    Releasing,
    /// It may have been told to deploy.
    Deploying,
    /// It has said yes to that.
    Following,
    /// It was seen to be there, or was given up.
    Closed,
}

impl Part {
    const ALL: [(Part, &'static str); 4] = [
        (Part::Releasing, "releasing"),
        (Part::Deploying, "deploying"),
        (Part::Following, "following"),
        (Part::Closed, "closed"),
    ];

    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(part, _)| *part == self).map_or("", |(_, text)| text)
    }
}

impl Begun {
    /// None of these has a space.
    fn text(&self) -> String {
        format!("maas {} {} {} {}", self.part.as_str(), self.operation, self.image, self.system_id)
    }

    fn parse(text: &str) -> Option<Self> {
        match text.split(' ').collect::<Vec<_>>().as_slice() {
            ["maas", part, operation, image, system_id] => Some(Self {
                part: Part::ALL.iter().find(|(_, text)| text == part)?.0,
                operation: (*operation).to_owned(),
                image: (*image).to_owned(),
                system_id: (*system_id).to_owned(),
            }),
            _ => None,
        }
    }

    /// Whatever the attempt.
    fn is_of(&self, op: &Operation) -> bool {
        let ours = op.key();
        self.operation.rsplit_once('.').map(|key| key.0) == ours.rsplit_once('.').map(|key| key.0)
    }

    fn has_deployed(&self, machine: &MaasMachine) -> bool {
        machine.annotations.get(OPERATION) == Some(&self.operation)
    }
}

/// What is known of a machine's disk.
#[derive(Default)]
pub(crate) struct Disk {
    pub installed: Option<Install>,
    pub installing: Option<Install>,
    pub note: String,
    pub failed: Option<FailedInstall>,
}

/// What was kept, as it stands there: whoever changes it must have seen it.
struct Kept {
    text: Option<String>,
    begun: Option<Begun>,
}

impl MaasProvider {
    async fn kept(&self, target: &Target) -> ProviderResult<Kept> {
        let text = self.keyring.pinned(&target.machine_id, Pin::Installation, "").await?;
        let begun = text.as_deref().and_then(Begun::parse);
        Ok(Kept { text, begun })
    }

    /// In the place of what was read. Overtaken is a no: look, and begin again.
    async fn remember(&self, target: &Target, read: &Kept, now: &Begun, why: &str) -> ProviderResult<Kept> {
        let (machine, because) = (&target.machine_id, Because { by: &target.by, why });
        let text = now.text();
        match self.keyring.repin(machine, Pin::Installation, "", read.text.as_deref(), &text, because).await? {
            Swap::Kept => Ok(Kept { text: Some(text), begun: Some(now.clone()) }),
            Swap::Overtaken => {
                let message = format!("what was begun on machine {machine} was changed by somebody else meanwhile");
                Err(ProviderError::transient(message))
            }
        }
    }

    fn just_acted(&self, target: &Target) {
        let mut acts = self.acts.lock().unwrap_or_else(PoisonError::into_inner);
        if acts.len() >= ACTS_MAX {
            acts.clear();
        }
        acts.insert(target.machine_id.clone(), Instant::now());
    }

    fn may_act_again(&self, target: &Target) -> bool {
        let acts = self.acts.lock().unwrap_or_else(PoisonError::into_inner);
        acts.get(&target.machine_id).is_none_or(|at| at.elapsed() >= AGAIN_AFTER)
    }

    /// `work`: for a step, which closes what it has waited for; a sweep looks, and changes nothing.
    pub(crate) async fn disk(&self, target: &Target, found: &Found, work: bool) -> ProviderResult<Disk> {
        let kept = self.kept(target).await?;
        let machine = &found.machine;
        let note = |text: &str| machine.annotations.get(text).cloned();
        let mut disk = Disk::default();
        if machine.status == DEPLOYED {
            let image = note(IMAGE).unwrap_or_else(|| format!("{}/{}", machine.osystem, machine.distro_series));
            disk.installed = Some(Install { image, operation: note(OPERATION).unwrap_or_default() });
        }
        let open = kept.begun.as_ref().filter(|begun| begun.part != Part::Closed && begun.system_id == found.id());
        let Some(begun) = open else { return Ok(disk) };
        if is_busy(machine) {
            disk.installing = Some(Install { image: begun.image.clone(), operation: begun.operation.clone() });
            disk.note = format!("{}, which MAAS is at: {}", begun.operation, machine.says());
        }
        disk.failed = failed(found, begun);
        if work && machine.status == DEPLOYED && begun.has_deployed(machine) {
            let closed = Begun { part: Part::Closed, ..begun.clone() };
            self.remember(target, &kept, &closed, "what was deployed is there").await?;
        }
        Ok(disk)
    }

    async fn user_data(&self, reference: &str) -> ProviderResult<Secret> {
        if reference.is_empty() {
            return Ok(Secret::default());
        }
        match self.keyring.credential(reference).await? {
            Credential::UserData(text) => Ok(text),
            other => {
                let message =
                    format!("credential {reference:?} is of kind {}, not user-data; store one that is", other.kind());
                Err(ProviderError::credential_missing(message))
            }
        }
    }

    async fn release(&self, target: &Target, found: &Found, kept: Kept, begun: Begun) -> ProviderResult<()> {
        let why = format!("{} installs {}", begun.operation, begun.image);
        self.remember(target, &kept, &Begun { part: Part::Releasing, ..begun.clone() }, &why).await?;
        let erase = found.site.policy.erase;
        found.maas.release(found.id(), &Release { erase, comment: begun.operation }).await
    }

    async fn deploy(
        &self,
        target: &Target,
        found: &Found,
        kept: Kept,
        begun: Begun,
        user_data: Secret,
    ) -> ProviderResult<()> {
        let why = format!("{} installs {}", begun.operation, begun.image);
        let told = Begun { part: Part::Deploying, ..begun.clone() };
        let kept = self.remember(target, &kept, &told, &why).await?;
        let deployment = Deployment {
            series: begun.image.clone(),
            kernel: String::new(),
            user_data,
            hardware_sync: found.site.policy.hardware_sync,
            agent_name: AGENT_NAME.to_owned(),
            comment: begun.operation.clone(),
        };
        found.maas.deploy(found.id(), &deployment).await?;
        let following = Begun { part: Part::Following, ..begun };
        self.remember(target, &kept, &following, "MAAS deploys it").await?;
        self.mark(found, &following).await
    }

    /// That this deployment is ours, and nobody's after it.
    async fn mark(&self, found: &Found, begun: &Begun) -> ProviderResult<()> {
        let marks = [(OPERATION, begun.operation.as_str()), (IMAGE, &begun.image), (BOOTED, "")];
        let marks: BTreeMap<String, String> = marks.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        found.maas.annotate(found.id(), &marks).await
    }
}

/// What has gone wrong with it, as its machine stands.
fn failed(found: &Found, begun: &Begun) -> Option<FailedInstall> {
    let machine = &found.machine;
    let (class, what) = match (begun.part, machine.status) {
        (Part::Releasing, RELEASING_FAILED) => (FailureClass::Transient, "could not be released"),
        (Part::Releasing, FAILED_DISK_ERASING) => (FailureClass::Hardware, "could not have its disks erased"),
        (Part::Deploying | Part::Following, FAILED_DEPLOYMENT) => (FailureClass::Transient, "could not be deployed"),
        (Part::Following, DEPLOYED | DEPLOYING) => return None,
        (Part::Following, _) if !is_busy(machine) => {
            (FailureClass::Conflict, "was taken back by somebody while it was deployed")
        }
        _ => return None,
    };
    let said = match machine.status_message.as_str() {
        "" => String::new(),
        said => format!("; MAAS's last word on it: {said}"),
    };
    let why = format!("{} {what}: it is {}{said}", found.name(), machine.says());
    Some(FailedInstall { operation: begun.operation.clone(), why, class })
}

/// What the act that comes next does.
enum Next {
    Release,
    Deploy,
    Mark,
    Nothing,
    No(ProviderError),
}

/// From where it stands: what is there is released, what is free is deployed.
fn next(found: &Found, ours: Option<&Begun>) -> Next {
    let machine = &found.machine;
    let part = ours.map(|begun| begun.part);
    match (machine.status, part) {
        (DEPLOYING, Some(Part::Deploying | Part::Following)) => Next::Mark,
        (DEPLOYED, Some(Part::Deploying | Part::Following)) => Next::Mark,
        (RELEASING | DISK_ERASING, Some(Part::Releasing)) => Next::Nothing,
        (READY, _) => Next::Deploy,
        (DEPLOYED | ALLOCATED | FAILED_DEPLOYMENT | RELEASING_FAILED | FAILED_DISK_ERASING, _) => Next::Release,
        _ if is_busy(machine) => {
            let message =
                format!("{} is {}: somebody else is at it; wait for the end of that", found.name(), machine.says());
            Next::No(ProviderError::because(Reason::WrongState, FailureClass::Conflict, message))
        }
        _ => Next::No(found.wrong_state("it can only be repaved when it is Ready, Deployed or failed to become so")),
    }
}

#[async_trait]
impl ImageControl for MaasProvider {
    async fn install(&self, target: &Target, image: &str, user_data_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        if image.is_empty() || image.contains(char::is_whitespace) {
            let message =
                format!("{image:?} is no image of a MAAS: name one such as noble, ubuntu/noble or custom/NAME");
            return Err(ProviderError::because(Reason::InvalidField, FailureClass::InvalidInput, message));
        }
        // before anything is lost that it would replace
        let user_data = self.user_data(user_data_ref).await?;
        let found = self.sure(target).await?;
        let kept = self.kept(target).await?;
        let open = kept.begun.clone().filter(|begun| begun.part != Part::Closed && begun.is_of(op));
        let system_id = found.id().to_owned();
        let begun = Begun { part: Part::Releasing, operation: op.key(), image: image.to_owned(), system_id };
        let act = next(&found, open.as_ref());
        self.just_acted(target);
        match act {
            Next::Nothing => {}
            Next::No(no) => return Err(no),
            Next::Release => {
                self.check_image(&found, image).await?;
                self.release(target, &found, kept, begun).await?;
            }
            Next::Deploy => self.deploy(target, &found, kept, begun, user_data).await?,
            Next::Mark => self.mark(&found, open.as_ref().unwrap_or(&begun)).await?,
        }
        Ok(Ack::Accepted)
    }

    async fn next_part(&self, target: &Target, op: &Operation) -> ProviderResult<NextPart> {
        let kept = self.kept(target).await?;
        let Some(begun) = kept.begun.filter(|begun| begun.part != Part::Closed && begun.is_of(op)) else {
            return Ok(NextPart::None);
        };
        let found = self.find(target).await?;
        let machine = &found.machine;
        if begun.system_id != machine.system_id || failed(&found, &begun).is_some() {
            return Ok(NextPart::None);
        }
        let due = match (begun.part, machine.status) {
            (Part::Releasing, READY | DEPLOYED | ALLOCATED | FAILED_DEPLOYMENT) => true,
            (Part::Deploying, READY) => true,
            (Part::Deploying | Part::Following, DEPLOYING | DEPLOYED) => !begun.has_deployed(machine),
            _ => false,
        };
        let on = format!("{}: {}", found.name(), machine.says());
        Ok(match due {
            true if self.may_act_again(target) || machine.status == READY && begun.part == Part::Releasing => {
                NextPart::Due
            }
            true => NextPart::Waits(on),
            false if is_busy(machine) => NextPart::Waits(on),
            false => NextPart::None,
        })
    }

    async fn abort_install(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        let kept = self.kept(target).await?;
        let Some(begun) = kept.begun.clone().filter(|begun| begun.part != Part::Closed && begun.is_of(op)) else {
            return Ok(Ack::Done);
        };
        // first of all: nothing follows what goes on
        let closed = Begun { part: Part::Closed, ..begun.clone() };
        self.remember(target, &kept, &closed, "the installation was given up").await?;
        let found = self.find(target).await?;
        // a release ends by itself, and half an erasure is worth less than a whole one
        if begun.part != Part::Releasing && found.machine.status == DEPLOYING && found.id() == begun.system_id {
            match found.maas.abort(found.id(), &begun.operation).await {
                Err(e) if e.reason() == Reason::WrongState => {}
                done => done?,
            }
        }
        Ok(Ack::Done)
    }
}

/// Whether one of the names that MAAS lists is meant. Releases by their numbers (`24.04`) are for MAAS to know.
fn is_listed(image: &str, listed: &str) -> bool {
    let bare = |name: &str| name.rsplit_once('/').map_or(name, |(_, bare)| bare).to_owned();
    image == listed || bare(listed) == image || (image.starts_with("custom/") && bare(image) == listed)
}

impl MaasProvider {
    /// Before what is there is given up for it: MAAS itself would say so only afterwards.
    async fn check_image(&self, found: &Found, image: &str) -> ProviderResult<()> {
        if image.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(());
        }
        let listed = found.maas.images().await?;
        if listed.iter().any(|(name, _)| is_listed(image, name)) {
            return Ok(());
        }
        let mut names: Vec<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let message = format!(
            "site {} has no image {image:?}; it has {}: name one of these, or import it there",
            self.site,
            crate::said::clean(&names.join(", "), 300)
        );
        Err(ProviderError::because(Reason::InvalidField, FailureClass::InvalidInput, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_each_of_its_names() {
        for (image, listed) in
            [("noble", "ubuntu/noble"), ("ubuntu/noble", "ubuntu/noble"), ("custom/hgx", "hgx"), ("hgx", "custom/hgx")]
        {
            assert!(is_listed(image, listed), "{image} {listed}");
        }
        for (image, listed) in [
            ("jammy", "ubuntu/noble"),
            ("ubuntu/jammy", "ubuntu/noble"),
            ("ubuntu", "ubuntu/noble"),
            ("", "ubuntu/noble"),
        ] {
            assert!(!is_listed(image, listed), "{image} {listed}");
        }
    }

    #[test]
    fn what_was_begun_is_read_as_it_was_written() {
        for (part, _) in Part::ALL {
            let begun = Begun {
                part,
                operation: "exe_1.repave.1".into(),
                image: "ubuntu/noble".into(),
                system_id: "4g4aaq".into(),
            };
            assert_eq!(Begun::parse(&begun.text()), Some(begun));
        }
        for other in ["", "media exe_1 u-24 id", "maas closed a b", "maas gone a b c", "maas closed a b c d"] {
            assert_eq!(Begun::parse(other), None, "{other}");
        }
    }
}
