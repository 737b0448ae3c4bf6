//! One controller over IPMI: what [`Bmc`] asks, in scripts for `ipmitool`, and what comes back, judged.
//!
//! Changes go out as raw commands, because only for those does ipmitool say whether they were sent and with which
//! code they were answered; reads use its own words. Before each call a few bytes ask whether anybody is there.

use crate::answer;
use crate::boot::{self, Flags};
use crate::power::{self, Order};
use crate::presence::{self, Presence};
use crate::refusal::{self, Who};
use crate::tool::{self, Ran, Said};
use async_trait::async_trait;
use domain::Secret;
use domain::credential::BmcLogin;
use domain::endpoint::BmcEndpoint;
use domain::hardware::{BootOverride, ConsoleInfo, Description, EventLogEntry, PowerAction, Sensor};
use domain::stage::FailureClass;
use provider::{Ack, Bmc, BmcState, PowerState, ProviderError, ProviderResult};
use std::path::PathBuf;
use std::time::Duration;

/// Who it is and how it stands, in one session.
const STATE: &str = "chassis status\nmc guid\nchassis bootparam get 5\nfru print 0\n";
const POWER: &str = "chassis status\n";
/// Of the channel that we come in by.
const USERS: &str = "set csv 1\nuser list 14\n";
/// Those that check the password and encrypt; the others, 0 above all, let anybody in or anybody listen.
const CIPHERS: [u8; 2] = [3, 17];
/// More than a log holds.
const EVENTS_MAX: usize = 10_000;
/// Set User Password: network function and command, and what is to be done with the password.
const ACCOUNT: (u8, u8) = (0x06, 0x47);
const SET: u8 = 2;
const TEST: u8 = 3;

/// How long is waited.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For any answer at all, before a call.
    pub presence: Duration,
    /// For a whole call: the session, every command in it, and its end.
    pub call: Duration,
}

/// Some controllers say yes to a longer one and keep its beginning, after which nobody gets in.
pub const NEW_PASSWORD_MAX: usize = 16;

impl Default for Timeouts {
    fn default() -> Self {
        Self { presence: Duration::from_secs(2), call: Duration::from_secs(20) }
    }
}

/// One controller. Holds no connection: each call has a session of its own.
#[derive(Clone, Debug)]
pub struct Ipmi {
    name: String,
    endpoint: BmcEndpoint,
    login: BmcLogin,
    credential_name: String,
    timeouts: Timeouts,
    tool: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Change,
}

impl Ipmi {
    pub fn new(endpoint: &BmcEndpoint, login: BmcLogin, credential_name: &str, timeouts: Timeouts) -> Self {
        let name = format!("the BMC at {} (IPMI)", endpoint.at());
        let (endpoint, credential_name) = (endpoint.clone(), credential_name.to_owned());
        Self { name, endpoint, login, credential_name, timeouts, tool: None }
    }

    /// Uses this `ipmitool` and not the one in `PATH`.
    #[must_use]
    pub fn with_tool(self, path: impl Into<PathBuf>) -> Self {
        Self { tool: Some(path.into()), ..self }
    }

    fn who(&self) -> Who<'_> {
        Who { name: &self.name, credential: &self.credential_name, cipher: self.endpoint.cipher }
    }

    async fn call(&self, doing: &str, script: impl Into<String>, kind: Kind) -> ProviderResult<Said> {
        self.call_with(&self.login, doing, Secret::new(script), kind).await
    }

    async fn call_with(&self, login: &BmcLogin, doing: &str, script: Secret, kind: Kind) -> ProviderResult<Said> {
        if !CIPHERS.contains(&self.endpoint.cipher) {
            let message = format!("{}: cipher suite {} is never used; say 17 or 3", self.name, self.endpoint.cipher);
            return Err(ProviderError::refused(FailureClass::InvalidInput, message));
        }
        let program = tool::find(self.tool.as_deref())?;
        if let Some(why) = tool::unfit(login) {
            let credential = &self.credential_name;
            let message = format!("credential {credential:?} cannot be used with {}: {why}", self.name);
            return Err(ProviderError::because(domain::Reason::LoginRefused, FailureClass::NeedsOperator, message));
        }
        match presence::look(&self.name, &self.endpoint.at(), self.timeouts.presence).await? {
            Presence::Answers => {}
            Presence::Refused => return Err(ProviderError::connection_refused(&self.name)),
            Presence::Silent => {
                let waited = self.timeouts.presence;
                return Err(ProviderError::unreachable(&self.name, &format!("nothing answers within {waited:?}")));
            }
        }
        let arguments = tool::arguments(&self.endpoint, &login.username);
        let ran = tool::run(&program, &arguments, &login.password, &script, self.timeouts.call).await?;
        match (ran, kind) {
            (Ran::Ended(said), _) => {
                tracing::trace!(bmc = %self.name, doing, success = said.success, "ipmitool ended");
                // what it printed goes into messages: a controller that repeats a password must not get it there
                let (out, err) = (login.password.blot(&said.out), login.password.blot(&said.err));
                Ok(Said { out, err, ..said })
            }
            (Ran::TimedOut, Kind::Change) => Err(ProviderError::unknown(format!(
                "{} was told {doing}, and the call was ended after {:?}",
                self.name, self.timeouts.call
            ))),
            (Ran::TimedOut, Kind::Read) => {
                let why = format!("it answers, but did not give {doing} within {:?}", self.timeouts.call);
                Err(ProviderError::unreachable(&self.name, &why))
            }
            (Ran::TooMuch, Kind::Change) => Err(ProviderError::unknown(format!("{} was told {doing}", self.name))),
            (Ran::TooMuch, Kind::Read) => Err(ProviderError::bad_answer(&self.name, "more than any answer can be")),
        }
    }

    async fn read<T>(&self, doing: &str, script: &str, take: impl Fn(&str) -> Option<T>) -> ProviderResult<(T, Said)> {
        let said = self.call(doing, script, Kind::Read).await?;
        match take(&said.out) {
            Some(taken) => Ok((taken, said)),
            None => Err(refusal::reading(self.who(), doing, &said)),
        }
    }

    /// What it says it did, and does not show.
    fn did_nothing(&self, what: &str, shows: &str) -> ProviderError {
        ProviderError::transient(format!("{} said yes to {what} and then shows {shows}: it did nothing", self.name))
    }

    fn judge_boot(&self, asked: Option<BootOverride>, said: &Said, wanted: Flags) -> ProviderResult<Ack> {
        let doing = asked.map_or("no boot override".to_owned(), |boot| format!("boot from {}", boot.mode.as_str()));
        let sent = refusal::change(self.who(), &doing, said, 0x00, 0x08);
        let Some(shown) = Flags::read(&said.out) else {
            sent?;
            // it said yes, and cannot be asked
            return Ok(Ack::Accepted);
        };
        if shown.in_force() == asked && (asked.is_some() || sent.is_ok()) {
            return Ok(Ack::Done);
        }
        sent?;
        if asked.is_none() {
            return Err(self.did_nothing(&doing, &format!("{:?}", shown.in_force())));
        }
        if shown.device() != wanted.device() {
            return Err(self.did_nothing(&doing, &format!("the boot device 0x{:02x}", shown.device())));
        }
        if wanted.persistent() && !shown.persistent() {
            return Err(self.lacks("a boot device for all boots (it took it for the next boot only)"));
        }
        // the device is as asked and not marked as valid: whether it counts shows only at the next boot
        tracing::debug!(bmc = %self.name, valid = shown.valid(), "the boot device was taken and is not marked valid");
        Ok(Ack::Accepted)
    }
}

#[async_trait]
impl Bmc for Ipmi {
    fn name(&self) -> &str {
        &self.name
    }

    async fn state(&self) -> ProviderResult<BmcState> {
        let (power, said) = self.read("its state", STATE, answer::power).await?;
        Ok(BmcState {
            serial_number: answer::serial_number(&said.out),
            system_uuid: answer::uuid(&said.out),
            power,
            boot: Flags::read(&said.out).and_then(Flags::in_force),
            health: answer::health(&said.out),
            last_reset: String::new(),
        })
    }

    async fn describe(&self) -> ProviderResult<Description> {
        let script = format!("{STATE}mc info\n");
        let (power, said) = self.read("its description", &script, answer::power).await?;
        let out = &said.out;
        let boot = Flags::read(out);
        let (serial_number, system_uuid, firmware) =
            (answer::serial_number(out), answer::uuid(out), answer::firmware(out));
        let mut gaps = vec!["processors, memory, drives and network cards: IPMI does not tell".to_owned()];
        for (missing, what) in [
            (serial_number.is_empty(), "serial number: FRU 0 is absent or has none"),
            (system_uuid.is_empty(), "system UUID: it has no GUID"),
            (boot.is_none(), "boot override: it does not show its boot flags"),
            (firmware.is_none(), "firmware: it does not tell its version"),
        ] {
            if missing {
                gaps.push(what.to_owned());
            }
        }
        let mut capabilities =
            vec!["power.on", "power.graceful-off", "power.force-off", "power.force-restart", "power.cycle"];
        if boot.is_some() {
            capabilities.extend(["boot.pxe", "boot.disk", "boot.cd"]);
        }
        capabilities.extend(["sensors", "event-log", "identify", "console.sol", "accounts"]);
        Ok(Description {
            source: "ipmi".to_owned(),
            manufacturer: answer::manufacturer(out),
            model: answer::model(out),
            serial_number,
            system_uuid,
            powered: Some(power == PowerState::On),
            health: answer::health(out),
            boot: boot.and_then(Flags::in_force),
            firmware: firmware.into_iter().collect(),
            capabilities: capabilities.into_iter().map(str::to_owned).collect(),
            gaps,
            ..Description::default()
        })
    }

    async fn power(&self, action: PowerAction) -> ProviderResult<Ack> {
        let doing = format!("power {}", action.as_str());
        if action == PowerAction::GracefulRestart {
            return Err(self.lacks("a graceful restart (IPMI can only ask for a shutdown, or reset)"));
        }
        let (before, _) = self.read("its power state", POWER, answer::power).await?;
        let code = match power::order(action, before) {
            Order::AlreadySo => return Ok(Ack::Done),
            Order::NotOffered => return Err(self.lacks(&doing)),
            Order::IsOff => {
                let message = format!("{} is off: there is nothing to restart; power it on", self.name);
                return Err(ProviderError::refused(FailureClass::Conflict, message));
            }
            Order::Send(code) => code,
        };
        let script = format!("raw 0x{:02x} 0x{:02x} 0x{code:02x}\n{POWER}", power::NETFN, power::COMMAND);
        let said = self.call(&doing, script, Kind::Change).await?;
        refusal::change(self.who(), &doing, &said, power::NETFN, power::COMMAND)?;
        let proven = power::proven_by(action).is_some_and(|state| answer::power(&said.out) == Some(state));
        Ok(if proven { Ack::Done } else { Ack::Accepted })
    }

    async fn set_boot(&self, boot: Option<BootOverride>) -> ProviderResult<Ack> {
        let Some(flags) = boot::flags(boot) else { return Err(self.lacks("HTTP boot (IPMI has no word for it)")) };
        let said = self.call("its next boot", flags.script(), Kind::Change).await?;
        self.judge_boot(boot, &said, flags)
    }

    async fn event_log(&self, limit: usize) -> ProviderResult<Vec<EventLogEntry>> {
        let limit = limit.min(EVENTS_MAX);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let said = self.call("its event log", format!("sel elist last {limit}\n"), Kind::Read).await?;
        let mut all = answer::events(&said.out);
        all.truncate(limit);
        let empty = said.success || said.err.contains("SEL has no entries");
        if all.is_empty() && !empty { Err(refusal::reading(self.who(), "its event log", &said)) } else { Ok(all) }
    }

    async fn sensors(&self) -> ProviderResult<Vec<Sensor>> {
        let said = self.call("its sensors", "sdr elist\n", Kind::Read).await?;
        let all = answer::sensors(&said.out);
        if all.is_empty() && !said.success { Err(refusal::reading(self.who(), "its sensors", &said)) } else { Ok(all) }
    }

    async fn identify(&self, on: bool) -> ProviderResult<Ack> {
        let (doing, script) =
            if on { ("identify on", "raw 0x00 0x04 0x00 0x01\n") } else { ("identify off", "raw 0x00 0x04 0x00\n") };
        let said = self.call(doing, script, Kind::Change).await?;
        refusal::change(self.who(), doing, &said, 0x00, 0x04)?;
        Ok(Ack::Done)
    }

    /// Proven by a login with the new password where the account is the one we use; for others by the controller's
    /// own comparison.
    async fn set_password(&self, username: &str, password: &Secret) -> ProviderResult<Ack> {
        let new = BmcLogin { username: username.to_owned(), password: password.clone() };
        let length = password.reveal().len();
        let too_long = || format!("it has {length} bytes, and not every controller keeps more than {NEW_PASSWORD_MAX}");
        let unfit = tool::unfit(&new).or_else(|| (length > NEW_PASSWORD_MAX).then(too_long));
        if let Some(why) = unfit {
            let message = format!("the new password cannot be set on {}: {why}", self.name);
            return Err(ProviderError::refused(FailureClass::InvalidInput, message));
        }
        let listed = self.call("its accounts", USERS, Kind::Read).await?;
        let Some(id) = answer::user_id(&listed.out, username) else {
            if answer::user_id(&listed.out, &self.login.username).is_none() {
                return Err(refusal::reading(self.who(), "its accounts", &listed));
            }
            return Err(self.lacks(&format!("an account {username:?}")));
        };
        let doing = "a new password";
        let raw = |operation: u8| {
            let mut bytes = [0; NEW_PASSWORD_MAX];
            bytes.iter_mut().zip(password.reveal().bytes()).for_each(|(to, from)| *to = from);
            // by their numbers, so that no character means anything to the script
            let bytes: String = bytes.iter().map(|byte| format!(" 0x{byte:02x}")).collect();
            format!("raw 0x{:02x} 0x{:02x} 0x{:02x} 0x{operation:02x}{bytes}\n", ACCOUNT.0, ACCOUNT.1, id)
        };
        let said = self.call_with(&self.login, doing, Secret::new(raw(SET)), Kind::Change).await?;
        refusal::change(self.who(), doing, &said, ACCOUNT.0, ACCOUNT.1)?;
        let own = username == self.login.username;
        let silent = |e: ProviderError| ProviderError::unknown(format!("{doing} was set and could not be tried: {e}"));
        let taken = if own {
            let tried = self.call_with(&new, doing, Secret::new(POWER), Kind::Read).await.map_err(silent)?;
            match refusal::no_session(self.who(), &tried) {
                Some(e) if e.reason() == domain::Reason::LoginRefused => false,
                Some(e) => return Err(silent(e)),
                None => true,
            }
        } else {
            let tried = self.call_with(&self.login, doing, Secret::new(raw(TEST)), Kind::Read).await.map_err(silent)?;
            match refusal::change(self.who(), doing, &tried, ACCOUNT.0, ACCOUNT.1) {
                Ok(()) => true,
                Err(ProviderError::Refused { .. }) => false,
                Err(e @ ProviderError::Unknown { .. }) => return Err(e),
            }
        };
        if taken {
            return Ok(Ack::Done);
        }
        // nothing changed only if we still get in as before; of another account that is not known
        let before = if own { self.state().await.map(drop).map_err(silent) } else { Ok(()) };
        before.and(Err(self.did_nothing(doing, &format!("another password for {username:?}"))))
    }

    async fn console(&self) -> ProviderResult<Vec<ConsoleInfo>> {
        let BmcEndpoint { host, port, cipher, .. } = &self.endpoint;
        let user = &self.login.username;
        Ok(vec![ConsoleInfo {
            kind: "serial".to_owned(),
            protocol: "ipmi-sol".to_owned(),
            connect: format!("ipmitool -I lanplus -C {cipher} -H {host} -p {port} -U '{user}' -E sol activate"),
            note: format!(
                "put the password of credential {:?} into IPMITOOL_PASSWORD first, or replace -E by -f FILE; ~. ends it",
                self.credential_name
            ),
        }])
    }
}
