//! A site asked point by point whether all is there that onboarding will need. Reads only, each within bounds; what cannot
//! be asked is said.

use crate::Service;
use crate::act::answer;
use crate::machines::required;
use crate::sites::not_found;
use domain::Error;
use domain::site::{Profile, Site, SiteState};
use provider::{Maas, MaasSubnet, ProviderResult, reach};
use std::collections::BTreeSet;
use store::site;

/// MAAS takes no request whose time is further off.
const CLOCK_MAX_MS: u64 = 300_000;
const CLOCK_WARN_MS: u64 = 30_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    Warning,
    Failed,
}

impl Verdict {
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failed => "failed",
        }
    }
}

/// One thing that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    pub what: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// Empty where all is well.
    pub todo: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteCheck {
    pub name: String,
    pub maas_version: String,
    pub points: Vec<Point>,
}

impl SiteCheck {
    pub fn is_ok(&self) -> bool {
        self.points.iter().all(|point| point.verdict != Verdict::Failed)
    }

    fn add(&mut self, what: &'static str, verdict: Verdict, found: impl Into<String>, todo: impl Into<String>) {
        self.points.push(Point { what, verdict, found: domain::limits::short(&found.into()), todo: todo.into() });
    }

    fn fine(&mut self, what: &'static str, found: impl Into<String>) {
        self.add(what, Verdict::Ok, found, "");
    }

    /// What was answered, or a point that says why nothing was.
    fn answered<T>(&mut self, what: &'static str, answer: ProviderResult<T>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(e) => {
                self.add(what, Verdict::Failed, e.to_string(), "see that it answers, then check again");
                None
            }
        }
    }
}

impl Service {
    pub async fn check_site(&self, name: &str) -> Result<SiteCheck, Error> {
        let name = required("name", name)?;
        let found = self.store().point(site::by_name(&name)).await?;
        let site = found.filter(|site| site.state == SiteState::Present).ok_or_else(|| not_found(&name))?;
        let mut check = SiteCheck { name: name.clone(), ..SiteCheck::default() };
        let clients = self.maas_clients();
        let maas = match reach(&site, self.vault(), clients.as_ref()).await {
            Ok(maas) => maas,
            Err(e) => {
                check.add("key", Verdict::Failed, e.to_string(), set_key(&site));
                return Ok(check);
            }
        };
        let asking = async {
            ask(&mut check, &site, maas.as_ref()).await;
            Ok(check)
        };
        answer(&format!("site {name}"), self.act_within(), asking).await
    }
}

fn set_key(site: &Site) -> String {
    format!("millwright credential set {} --kind maas", site.credentials_ref)
}

async fn ask(check: &mut SiteCheck, site: &Site, maas: &dyn Maas) {
    let account = match maas.account().await {
        Ok(account) => account,
        Err(e) => {
            use domain::Reason;
            let (what, todo) = match e.reason() {
                Reason::LoginRefused => ("key", set_key(site)),
                Reason::UntrustedCertificate => {
                    ("reached", format!("millwright site edit {} --maas-ca CA.pem", site.name))
                }
                _ => ("reached", format!("see that {} answers from here, and that its port is open", site.url)),
            };
            return check.add(what, Verdict::Failed, e.to_string(), todo);
        }
    };
    check.fine("reached", format!("{} answers, MAAS {}", site.url, account.version));
    check.maas_version = account.version;
    check.fine("key", format!("the key is taken, as {}", account.username));
    match account.is_admin {
        true => check.fine("admin", format!("{} is an administrator", account.username)),
        false => check.add(
            "admin",
            Verdict::Failed,
            format!("{} is no administrator: machines cannot be made, commissioned or laid out", account.username),
            "make it one in MAAS, or use another's key",
        ),
    }
    let clock = maas.clock_ahead_ms().await;
    if let Some(Some(ahead)) = check.answered("clock", clock) {
        clock_point(check, ahead);
    }
    let answer = maas.images().await;
    if let Some(images) = check.answered("image", answer) {
        site.profiles.iter().for_each(|profile| image_point(check, profile, &images));
    }
    let answer = maas.subnets().await;
    if let Some(subnets) = check.answered("subnet", answer) {
        subnet_points(check, site, &subnets);
    }
    let answer = maas.pools().await;
    if let Some(Some(pools)) = check.answered("pool", answer) {
        named(check, "pool", site.profiles.iter().map(|p| p.pool.as_str()), &pools);
    }
    let answer = maas.zones().await;
    if let Some(Some(zones)) = check.answered("zone", answer) {
        named(check, "zone", site.profiles.iter().map(|p| p.zone.as_str()), &zones);
    }
}

fn clock_point(check: &mut SiteCheck, ahead: i64) {
    let off = ahead.unsigned_abs();
    let found = format!("its clock is {} s {} ours", off / 1000, if ahead < 0 { "behind" } else { "ahead of" });
    match off {
        CLOCK_MAX_MS.. => {
            check.add("clock", Verdict::Failed, found, "set both by NTP: MAAS takes nothing that is 300 s off")
        }
        CLOCK_WARN_MS.. => check.add("clock", Verdict::Warning, found, "set both by NTP"),
        _ => check.fine("clock", found),
    }
}

/// `amd64` of `amd64/generic`.
fn machine_kind(architecture: &str) -> &str {
    architecture.split('/').next().unwrap_or_default()
}

fn image_point(check: &mut SiteCheck, profile: &Profile, images: &[(String, String)]) {
    let kind = machine_kind(&profile.architecture);
    let fits = |(name, architecture): &&(String, String)| {
        let series = name.rsplit('/').next().unwrap_or_default();
        let named = profile.series.is_empty() || *name == profile.series || series == profile.series;
        named && machine_kind(architecture) == kind
    };
    let wanted = if profile.series.is_empty() { "some system".to_owned() } else { profile.series.clone() };
    match images.iter().find(fits) {
        Some((name, architecture)) => {
            check.fine("image", format!("profile {}: {name} for {architecture} is imported", profile.name));
        }
        None => check.add(
            "image",
            Verdict::Failed,
            format!("profile {}: {wanted} for {kind} is not imported", profile.name),
            "import it in MAAS, or name another series",
        ),
    }
}

fn subnet_points(check: &mut SiteCheck, site: &Site, subnets: &[MaasSubnet]) {
    let wanted: BTreeSet<&str> = site
        .profiles
        .iter()
        .flat_map(|p| std::iter::once(p.pxe_subnet.as_str()).chain(p.roce.iter().map(|r| r.subnet.as_str())))
        .filter(|subnet| !subnet.is_empty())
        .collect();
    for name in wanted {
        let is = |subnet: &&MaasSubnet| match name.split_once(':') {
            Some(("cidr", cidr)) => subnet.cidr == cidr,
            Some(("name", wanted)) => subnet.name == wanted,
            Some(_) | None => subnet.id.to_string() == name,
        };
        match subnets.iter().filter(is).count() {
            1 => check.fine("subnet", format!("{name} is there")),
            0 => {
                check.add("subnet", Verdict::Failed, format!("{name} is not there"), "make it in MAAS, or name another")
            }
            n => check.add("subnet", Verdict::Failed, format!("{name} means {n} subnets"), "name it by its number"),
        }
    }
}

fn named<'a>(check: &mut SiteCheck, what: &'static str, wanted: impl Iterator<Item = &'a str>, there: &[String]) {
    let wanted: BTreeSet<&str> = wanted.filter(|name| !name.is_empty()).collect();
    for name in wanted {
        match there.iter().any(|there| there == name) {
            true => check.fine(what, format!("{name} is there")),
            false => {
                check.add(what, Verdict::Failed, format!("{name} is not there"), "make it in MAAS, or name another");
            }
        }
    }
}
