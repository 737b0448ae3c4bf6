//! Installing an image: with an installer in the BMC's virtual drive, or with a script on the host as it is. By network
//! boot it is done in `network_install`; what was begun is remembered here for all three.
//! What was begun is durable before anything is touched, so that whoever looks later can tell what came of it.

use crate::datacenter::{Datacenter, Inner};
use crate::host::last_words;
use crate::lane::For;
use crate::options::Image;
use async_trait::async_trait;
use domain::Reason;
use domain::hardware::{BootOverride, PowerAction};
use domain::identity::confirms;
use domain::limits::short;
use domain::plan::BootMode;
use domain::stage::FailureClass;
use provider::{
    Ack, Because, Bmc as _, Command, ExecState, ImageControl, Install, Operation, Pin, PowerState, ProviderError,
    ProviderResult, Swap, Target,
};
use ssh::HostIdentity;
use std::collections::BTreeMap;

/// The installation that was begun last on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Installation {
    pub operation: String,
    pub image: String,
    /// What told the system apart that was there before: what comes up with another is a new one. Once closed:
    /// what tells the system apart that is there now, for the next installation.
    /// By network boot: when the BMC says that it was last reset before it was told to boot.
    pub before: String,
    pub state: Begun,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The BMC is being made ready; the machine runs on as it was, and all of it can be done again.
    Preparing,
    Media,
    Script,
    /// By network boot: an order is opened, and the machine not yet told to boot; all of it can be done again.
    /// `sets_boot`: where it boots from is set for the sake of this, and taken back at its end.
    Ordering {
        sets_boot: bool,
    },
    /// By network boot: it may have been told.
    Network {
        sets_boot: bool,
    },
    /// It was seen to be there, or was given up.
    Closed,
}

const PREPARING: &str = "preparing";
const MEDIA: &str = "media";
const SCRIPT: &str = "script";
const ORDERING: &str = "ordering";
const ORDERING_SETS: &str = "ordering+boot";
const NETWORK: &str = "network";
const NETWORK_SETS: &str = "network+boot";
const CLOSED: &str = "closed";
/// What nobody could tell before.
pub(crate) const NOTHING: &str = "-";

impl Installation {
    /// Operations, images and machine ids have no spaces.
    pub fn text(&self) -> String {
        let state = match self.state {
            Begun::Preparing => PREPARING,
            Begun::Media => MEDIA,
            Begun::Script => SCRIPT,
            Begun::Ordering { sets_boot: false } => ORDERING,
            Begun::Ordering { sets_boot: true } => ORDERING_SETS,
            Begun::Network { sets_boot: false } => NETWORK,
            Begun::Network { sets_boot: true } => NETWORK_SETS,
            Begun::Closed => CLOSED,
        };
        format!("{state} {} {} {}", self.operation, self.image, self.before)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let state = match words.next()? {
            PREPARING => Begun::Preparing,
            MEDIA => Begun::Media,
            SCRIPT => Begun::Script,
            ORDERING => Begun::Ordering { sets_boot: false },
            ORDERING_SETS => Begun::Ordering { sets_boot: true },
            NETWORK => Begun::Network { sets_boot: false },
            NETWORK_SETS => Begun::Network { sets_boot: true },
            CLOSED => Begun::Closed,
            _ => return None,
        };
        let mut word = || words.next().map(str::to_owned);
        let begun = Self { operation: word()?, image: word()?, before: word()?, state };
        words.next().is_none().then_some(begun)
    }

    /// Whether the system may be another at any moment. By network boot its order says so.
    pub fn is_open(&self) -> bool {
        match self.state {
            Begun::Media | Begun::Script => true,
            Begun::Preparing | Begun::Ordering { .. } | Begun::Network { .. } | Begun::Closed => false,
        }
    }

    /// Whether where it boots from is set for the sake of this.
    pub fn sets_boot(&self) -> bool {
        match self.state {
            Begun::Ordering { sets_boot } | Begun::Network { sets_boot } => sets_boot,
            Begun::Preparing | Begun::Media | Begun::Script | Begun::Closed => false,
        }
    }

    pub fn is_by_network(&self) -> bool {
        match self.state {
            Begun::Ordering { .. } | Begun::Network { .. } => true,
            Begun::Preparing | Begun::Media | Begun::Script | Begun::Closed => false,
        }
    }
}

/// Several servers may look at one machine. Whoever is overtaken looks again; so often in a row nobody is.
const LOOKS_AGAIN: usize = 8;

fn overtaken(target: &Target) -> ProviderError {
    let message = format!("what was begun on machine {} was changed by somebody else meanwhile", target.machine_id);
    ProviderError::transient(message)
}

/// How an installation goes that has not shown itself on the disk.
pub(crate) enum Going {
    /// As far as anybody can tell.
    On,
    /// Nothing of it ever reached the machine.
    NotBegun,
    Wrong(String),
}

impl Inner {
    /// What was begun last, if anything.
    pub async fn begun(&self, target: &Target) -> ProviderResult<Option<Installation>> {
        let kept = self.keyring.pinned(&target.machine_id, Pin::Installation, "").await?;
        let begun = kept.as_deref().and_then(Installation::parse);
        if begun.is_none() && kept.is_some() {
            // nobody can make anything of it: it must not stand in the way of the next one
            self.keyring.unpin(&target.machine_id, Pin::Installation, "it cannot be read").await?;
        }
        Ok(begun)
    }

    /// In the place of what was read: what has been begun since is newer than whatever we make of the old one.
    pub async fn remember(
        &self,
        target: &Target,
        read: Option<&Installation>,
        now: &Installation,
        why: &str,
    ) -> ProviderResult<Swap> {
        let read = read.map(Installation::text);
        let because = Because { by: &target.by, why };
        self.keyring.repin(&target.machine_id, Pin::Installation, "", read.as_deref(), &now.text(), because).await
    }

    /// The same, where nothing may be touched unless it is remembered. Overtaken is a no: look, and begin again.
    pub async fn must_remember(
        &self,
        target: &Target,
        read: Option<&Installation>,
        now: &Installation,
        why: &str,
    ) -> ProviderResult<()> {
        match self.remember(target, read, now, why).await? {
            Swap::Kept => Ok(()),
            Swap::Overtaken => Err(overtaken(target)),
        }
    }

    /// Whatever was begun is no longer waited for. What is there now is what the next one must differ from.
    pub async fn close_installation(&self, target: &Target, why: &str) -> ProviderResult<()> {
        for _ in 0..LOOKS_AGAIN {
            let Some(begun) = self.begun(target).await?.filter(|begun| begun.state != Begun::Closed) else {
                return Ok(());
            };
            if begun.is_by_network() {
                return self.forget_network(target, why).await;
            }
            let closed = Installation { state: Begun::Closed, image: NOTHING.to_owned(), ..begun.clone() };
            match self.remember(target, Some(&begun), &closed, why).await? {
                Swap::Kept => return Ok(()),
                Swap::Overtaken => {}
            }
        }
        Err(overtaken(target))
    }

    /// Takes out what an installation has left in the drive and closes it, if it is there; answers with what is begun by
    /// then. Only for the step that waits for it: a sweep looks, and changes nothing.
    pub async fn finish(
        &self,
        target: &Target,
        host: &HostIdentity,
        begun: Installation,
    ) -> ProviderResult<Option<Installation>> {
        let mut begun = begun;
        for _ in 0..LOOKS_AGAIN {
            self.tell_if_unproven(target, host, &begun);
            let is_there = image_of(host, Some(&begun)).is_some_and(|there| there.operation == begun.operation);
            if !is_there || !begun.is_open() {
                return Ok(Some(begun));
            }
            // a look may be slow: the disc of the next installation is not taken out
            if self.begun(target).await?.as_ref() == Some(&begun) {
                if begun.state == Begun::Media {
                    self.take_out(target).await?;
                }
                let before = if host.instance.is_empty() { NOTHING.to_owned() } else { host.instance.clone() };
                let closed = Installation { state: Begun::Closed, before, ..begun.clone() };
                match self.remember(target, Some(&begun), &closed, "the installation is there").await? {
                    Swap::Kept => return Ok(Some(begun)),
                    Swap::Overtaken => {}
                }
            }
            match self.begun(target).await? {
                Some(newer) => begun = newer,
                None => return Ok(None),
            }
        }
        Err(overtaken(target))
    }

    /// Says once why an image of that name on the disk does not end the wait.
    fn tell_if_unproven(&self, target: &Target, host: &HostIdentity, begun: &Installation) {
        let mut words = host.image.as_deref().unwrap_or_default().split_whitespace();
        let (image, said) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let unproven = image == begun.image && said.is_empty() && !tells_new_from_old(host, begun) && begun.is_open();
        if unproven && self.unproven.get(&target.machine_id, begun).is_none() {
            self.unproven.put(&target.machine_id, begun.clone(), ());
            target.notes.add(format!(
                "image {image} is on the disk, and whether {} has put it there cannot be told: nobody could read the \
                 system before, and /etc/millwright-image does not name the operation; it is waited for, and the next \
                 attempt knows what a new system must differ from",
                begun.operation
            ));
        }
    }

    /// The installer has done its work: it must not run again at the next boot.
    async fn take_out(&self, target: &Target) -> ProviderResult<()> {
        let (bmc, state) = self.checked(target, For::Work).await?;
        let _ = bmc.eject_media().await?;
        if state.boot.is_some_and(|boot| boot.mode == BootMode::Cd) {
            let _ = bmc.set_boot(None).await?;
        }
        Ok(())
    }

    /// How an installation goes that was begun and is not on the disk.
    pub async fn going(&self, target: &Target, begun: &Installation) -> ProviderResult<Going> {
        match begun.state {
            Begun::Media | Begun::Network { .. } | Begun::Closed => return Ok(Going::On),
            Begun::Preparing | Begun::Ordering { .. } => return Ok(Going::NotBegun),
            Begun::Script => {}
        }
        let Ok(reached) = self.host(target, For::Work).await else { return Ok(Going::On) };
        match self.on_host(&reached, For::Work, reached.host.poll(&begun.operation, 0)).await {
            Ok(progress) => Ok(match progress.state {
                ExecState::Exited(0) => {
                    Going::Wrong("the script ended, and /etc/millwright-image does not name the image".to_owned())
                }
                ExecState::Exited(status) => {
                    let said = last_words(&progress);
                    Going::Wrong(short(&format!("the script ended with exit status {status}: {said}")))
                }
                ExecState::Running => Going::On,
                // starting it again under the same key is no second start
                ExecState::NeverStarted => Going::NotBegun,
            }),
            // it may be on its way into the new system
            Err(_) => Ok(Going::On),
        }
    }

    fn image(&self, name: &str) -> ProviderResult<&Image> {
        self.options.images.get(name).ok_or_else(|| {
            let known: Vec<&String> = self.options.images.keys().collect();
            let otherwise = match &self.netboot {
                Some(_) => ", and by network boot this machine cannot be installed with it",
                None => "",
            };
            let message = format!("there is no image {name:?}; configured in [images]: {known:?}{otherwise}");
            ProviderError::because(Reason::InvalidField, FailureClass::InvalidInput, message)
        })
    }
}

/// Whether the system says which one it is, and it is known which one was there before.
fn tells_new_from_old(host: &HostIdentity, begun: &Installation) -> bool {
    begun.before != NOTHING && !host.instance.is_empty()
}

/// What is on the disk, and which operation put it there.
pub(crate) fn image_of(host: &HostIdentity, begun: Option<&Installation>) -> Option<Install> {
    let mut words = host.image.as_deref().unwrap_or_default().split_whitespace();
    let image = words.next()?;
    let said = words.next().unwrap_or_default();
    let Some(begun) = begun.filter(|begun| begun.image == image) else {
        return Some(Install { image: image.to_owned(), operation: said.to_owned() });
    };
    let differs = tells_new_from_old(host, begun) && host.instance != begun.before;
    let ours = match begun.state {
        Begun::Closed => said.is_empty() || said == begun.operation,
        Begun::Media | Begun::Script => said == begun.operation || (said.is_empty() && differs),
        Begun::Preparing | Begun::Ordering { .. } | Begun::Network { .. } => false,
    };
    let operation = if ours { begun.operation.clone() } else { said.to_owned() };
    Some(Install { image: image.to_owned(), operation })
}

/// A disk is overwritten only on a machine that is known to be the one that is meant.
pub(crate) fn must_be_known(target: &Target) -> ProviderResult<()> {
    if target.spec.serial_number.is_empty() && target.spec.system_uuid.is_empty() {
        let message = format!(
            "machine {} has neither serial number nor system UUID in its record, so nobody can tell whether this is the \
             machine whose disk may be overwritten; fill one in: 'millwright machine update {} --serial SERIAL'",
            target.machine_id, target.machine_id
        );
        return Err(ProviderError::because(Reason::WrongMachine, FailureClass::NeedsOperator, message));
    }
    Ok(())
}

/// That nobody says another name is not enough: whoever has the disk must have said this one.
pub(crate) fn must_confirm(target: &Target, who: &str, serial_number: &str, system_uuid: &str) -> ProviderResult<()> {
    if confirms(&target.spec, serial_number, system_uuid) {
        return Ok(());
    }
    let message = format!(
        "{who} of machine {} does not confirm that it is the machine whose disk may be overwritten: the record has serial \
         number {:?} and system UUID {:?}, and it says {serial_number:?} and {system_uuid:?}; correct the record, or let the \
         SSH login read them (as root, or by sudo)",
        target.machine_id, target.spec.serial_number, target.spec.system_uuid
    );
    Err(ProviderError::because(Reason::WrongMachine, FailureClass::NeedsOperator, message))
}

#[async_trait]
impl ImageControl for Datacenter {
    async fn install(&self, target: &Target, image: &str, user_data_ref: &str, op: &Operation) -> ProviderResult<Ack> {
        let inner = &self.inner;
        if let Some(netboot) = inner.by_network(target, image).await? {
            return inner.install_by_network(netboot.as_ref(), target, image, user_data_ref, op).await;
        }
        let how = inner.image(image)?.clone();
        must_be_known(target)?;
        let earlier = inner.begun(target).await?;
        // who is there now, by its own word; a system that is down or empty has none
        let before = match inner.reading(target, For::Work).await {
            Ok(host) => {
                if matches!(how, Image::Script { .. }) {
                    must_confirm(target, "the system", &host.serial_number, &host.system_uuid)?;
                }
                if host.instance.is_empty() { NOTHING.to_owned() } else { host.instance }
            }
            Err(e) if e.reason() == Reason::WrongMachine => return Err(e),
            Err(e) if matches!(how, Image::Script { .. }) => return Err(e),
            // then what was there last is what a new one must differ from
            Err(_) => earlier.as_ref().map_or(NOTHING.to_owned(), |earlier| earlier.before.clone()),
        };
        let state = match &how {
            Image::Media { .. } => Begun::Preparing,
            Image::Script { .. } => Begun::Script,
        };
        let begun = Installation { operation: op.key(), image: image.to_owned(), before, state };
        match how {
            Image::Media { url } => {
                if !user_data_ref.is_empty() {
                    let message = format!(
                        "image {image:?} is installed from virtual media, which can be given no user data; leave user_data_ref empty"
                    );
                    return Err(ProviderError::because(Reason::InvalidField, FailureClass::InvalidInput, message));
                }
                let (bmc, now) = inner.checked(target, For::Work).await?;
                must_confirm(target, "the BMC", &now.serial_number, &now.system_uuid)?;
                let why = format!("{} installs {image}", op.key());
                inner.must_remember(target, earlier.as_ref(), &begun, &why).await?;
                // nothing has begun yet: what was not answered is simply done again
                let again = |e| match e {
                    ProviderError::Unknown { message } => ProviderError::transient(message),
                    no @ ProviderError::Refused { .. } => no,
                };
                let _ = bmc.insert_media(&url).await.map_err(again)?;
                let _ =
                    bmc.set_boot(Some(BootOverride { mode: BootMode::Cd, persistent: false })).await.map_err(again)?;
                let action = match now.power {
                    PowerState::On => PowerAction::ForceRestart,
                    PowerState::Off => PowerAction::On,
                };
                // from here on it may have begun, whatever is heard
                let booting = Installation { state: Begun::Media, ..begun.clone() };
                inner.must_remember(target, Some(&begun), &booting, &why).await?;
                if let Err(no) = bmc.power(action).await {
                    if matches!(no, ProviderError::Refused { .. }) {
                        // unless somebody has closed it since
                        let _ = inner
                            .remember(target, Some(&booting), &begun, "the BMC refused to start the machine")
                            .await?;
                    }
                    return Err(no);
                }
            }
            Image::Script { text } => {
                if !target.spec.bmc_endpoint.is_empty() {
                    inner.checked(target, For::Work).await?;
                }
                let why = format!("{} installs {image}", op.key());
                inner.must_remember(target, earlier.as_ref(), &begun, &why).await?;
                let environment = BTreeMap::from([
                    ("MILLWRIGHT_IMAGE".to_owned(), image.to_owned()),
                    ("MILLWRIGHT_OPERATION".to_owned(), op.key()),
                    ("MILLWRIGHT_USER_DATA_REF".to_owned(), user_data_ref.to_owned()),
                ]);
                let command = Command { command: "sh".to_owned(), args: vec!["-c".to_owned(), text], environment };
                let reached = inner.host(target, For::Work).await?;
                let key = op.key();
                let started = reached.host.start(&command, &key, None);
                let _ = inner.on_host(&reached, For::Work, started).await?;
            }
        }
        Ok(Ack::Accepted)
    }

    async fn abort_install(&self, target: &Target, op: &Operation) -> ProviderResult<Ack> {
        let inner = &self.inner;
        let Some(begun) = inner.begun(target).await?.filter(|begun| begun.operation == op.key()) else {
            return Ok(Ack::Done);
        };
        match begun.state {
            Begun::Closed => return Ok(Ack::Done),
            Begun::Ordering { .. } | Begun::Network { .. } => return inner.abort_network(target, op, &begun).await,
            Begun::Preparing | Begun::Media => inner.take_out(target).await?,
            Begun::Script => {
                let reached = inner.host(target, For::Work).await?;
                let _ = inner.on_host(&reached, For::Work, reached.host.kill(&op.key())).await?;
            }
        }
        inner.close_installation(target, "the installation was given up").await?;
        Ok(Ack::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_is_read_as_it_was_written() {
        let by_network = [true, false]
            .into_iter()
            .flat_map(|sets_boot| [Begun::Ordering { sets_boot }, Begun::Network { sets_boot }]);
        for state in [Begun::Preparing, Begun::Media, Begun::Script, Begun::Closed].into_iter().chain(by_network) {
            let begun =
                Installation { operation: "exe_1.repave.1".into(), image: "u-24".into(), before: "id".into(), state };
            assert_eq!(Installation::parse(&begun.text()), Some(begun.clone()));
            assert_eq!(begun.is_open(), matches!(state, Begun::Media | Begun::Script));
        }
        assert_eq!(Installation::parse(""), None);
        assert_eq!(Installation::parse("media exe_1"), None);
    }
}
