//! Users and groups: whose they are, and the lines that tenants have in the files that say so.

use super::baseline::{Baseline, line_digest};
use super::{Found, How, Item, View};
use crate::host::Host;
use crate::install;
use crate::task::beneath::{Folder, Links};
use crate::task::process::Who;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// What the lines of a file mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// name:…:uid:gid:…:home:…
    Users,
    /// The name of a user, then things of theirs.
    OfUser,
    /// name:…:gid:members
    Groups,
    /// name:…:administrators:members
    OfGroup,
}

/// In /etc, backups that the tools leave included. Users last: by them the other lines are known.
pub const ACCOUNT_FILES: &[(&str, Kind)] = &[
    ("subuid", Kind::OfUser),
    ("subuid-", Kind::OfUser),
    ("subgid", Kind::OfUser),
    ("subgid-", Kind::OfUser),
    ("shadow", Kind::OfUser),
    ("shadow-", Kind::OfUser),
    ("gshadow", Kind::OfGroup),
    ("gshadow-", Kind::OfGroup),
    ("group", Kind::Groups),
    ("group-", Kind::Groups),
    ("passwd-", Kind::Users),
    ("passwd", Kind::Users),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: String,
}

fn fields(line: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(line).split(':').map(str::to_owned).collect()
}

fn lines(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"))
}

fn user(line: &[u8]) -> Option<User> {
    match fields(line).as_slice() {
        [name, _, uid, gid, _, home, ..] => {
            Some(User { name: name.clone(), uid: uid.parse().ok()?, gid: gid.parse().ok()?, home: home.clone() })
        }
        _ => None,
    }
}

pub fn users(passwd: &[u8]) -> Vec<User> {
    lines(passwd).filter_map(user).collect()
}

pub fn groups(group: &[u8]) -> BTreeMap<String, u32> {
    let one = |line: &[u8]| {
        let fields = fields(line);
        Some((fields.first()?.clone(), fields.get(2)?.parse().ok()?))
    };
    lines(group).filter_map(one).collect()
}

/// Who is a user of the site's, and who is not.
pub struct Accounts {
    users: Vec<User>,
    groups: BTreeMap<String, u32>,
    uid_min: u32,
    named: BTreeSet<String>,
    known: Option<Baseline>,
}

impl Accounts {
    pub fn read(host: &Host, uid_min: u32, named: &[String], known: Option<&Baseline>) -> Result<Self, String> {
        let links = known.map(|known| known.links.clone()).unwrap_or_default();
        let etc = etc(host, &links)?;
        let read = |name: &str| -> Result<Vec<u8>, String> {
            let content = etc.read(OsStr::new(name)).map_err(|error| format!("reading /etc/{name}: {error}"))?;
            content.ok_or_else(|| format!("there is no /etc/{name}: users cannot be told apart"))
        };
        let (users, groups) = (users(&read("passwd")?), groups(&read("group")?));
        Ok(Self { users, groups, uid_min, named: named.iter().cloned().collect(), known: known.cloned() })
    }

    fn keeps(&self, user: &User) -> bool {
        let known = self.known.as_ref().and_then(|known| known.users.get(&user.name)).map(|known| known.uid);
        // a second root is nobody's business but the site's
        let system = match (&self.known, user.uid) {
            (Some(_), 0) => user.name == "root",
            _ => !self.by_number(user.uid),
        };
        system || self.named.contains(&user.name) || known == Some(user.uid)
    }

    /// Whether the number alone is that of a person.
    fn by_number(&self, number: u32) -> bool {
        Who { uid_min: self.uid_min, kept: BTreeSet::new() }.is_tenant(number)
    }

    pub fn leaving(&self) -> impl Iterator<Item = &User> {
        self.users.iter().filter(|user| !self.keeps(user))
    }

    pub fn staying(&self) -> impl Iterator<Item = &User> {
        self.users.iter().filter(|user| self.keeps(user))
    }

    pub fn kept_uids(&self) -> BTreeSet<u32> {
        self.staying().map(|user| user.uid).filter(|uid| self.by_number(*uid)).collect()
    }

    pub fn kept_names(&self) -> Vec<&str> {
        self.staying().filter(|user| self.by_number(user.uid)).map(|user| user.name.as_str()).collect()
    }

    /// Homes of users that are kept by name, whom the baseline does not know.
    pub fn homes_not_judged(&self) -> Vec<&str> {
        let known = |user: &User| self.known.as_ref().is_some_and(|known| known.users.contains_key(&user.name));
        self.staying().filter(|user| self.by_number(user.uid) && !known(user)).map(|user| user.home.as_str()).collect()
    }

    fn keeps_group(&self, name: &str, gid: u32) -> bool {
        let known = self.known.as_ref().and_then(|known| known.groups.get(name)) == Some(&gid);
        known || !self.by_number(gid) || self.staying().any(|user| user.gid == gid) || self.named.contains(name)
    }

    fn has_user(&self, name: &str) -> bool {
        self.users.iter().any(|user| user.name == name)
    }

    fn leaves(&self, name: &str) -> bool {
        // a line may name a user by number
        self.leaving().any(|user| user.name == name)
            || name.parse().is_ok_and(|uid| self.by_number(uid) && !self.staying().any(|user| user.uid == uid))
    }

    /// What becomes of a line: stays, or is replaced.
    fn judge(&self, file: &str, kind: Kind, line: &[u8]) -> Option<Option<Vec<u8>>> {
        let fields = fields(line);
        let name = fields.first()?;
        let known = self
            .known
            .as_ref()
            .and_then(|known| known.account_lines.get(file))
            .is_some_and(|lines| lines.contains(&line_digest(line)));
        if known {
            return None;
        }
        match kind {
            Kind::Users => user(line).is_some_and(|user| !self.keeps(&user)).then_some(None),
            Kind::OfUser => (self.leaves(name) || !self.has_user(name)).then_some(None),
            Kind::Groups | Kind::OfGroup => {
                let gid = match kind {
                    Kind::Groups => fields.get(2).and_then(|gid| gid.parse().ok()),
                    _ => self.groups.get(name).copied(),
                };
                if !gid.is_some_and(|gid| self.keeps_group(name, gid)) {
                    return Some(None);
                }
                let mut changed = fields.clone();
                let lists = if kind == Kind::Groups { 3..4 } else { 2..4 };
                for list in changed.iter_mut().enumerate().filter(|(at, _)| lists.contains(at)).map(|(_, list)| list) {
                    let stay = |name: &&str| !self.leaves(name) && (name.is_empty() || self.has_user(name));
                    *list = list.split(',').filter(stay).collect::<Vec<_>>().join(",");
                }
                (changed != fields).then(|| Some(changed.join(":").into_bytes()))
            }
        }
    }
}

/// What stays, and a person has to look at.
impl Accounts {
    /// An account of the system's own that the baseline does not have may be a package's; a password or a shell that has
    /// changed may be the site's doing. Neither is proven, and neither is taken back by us.
    fn doubt(&self, file: &str, line: &[u8]) -> Option<&'static str> {
        let known = self.known.as_ref()?;
        let name = fields(line).first()?.clone();
        let as_it_was = known.account_lines.get(file).is_some_and(|lines| lines.contains(&line_digest(line)));
        if as_it_was || self.named.contains(&name) || name == install::USER {
            return None;
        }
        let was_here = known.users.contains_key(&name);
        match file {
            "passwd" | "shadow" if was_here => Some("its line is not as it was in the baseline"),
            "passwd" => Some("an account that is not in the baseline"),
            _ => None,
        }
    }
}

fn etc(host: &Host, links: &Links) -> Result<Folder, String> {
    let etc = Folder::open(host, Path::new("/etc"), links).map_err(|error| error.to_string())?;
    etc.ok_or_else(|| "there is no /etc".to_owned())
}

/// Lines of tenants.
pub fn look(view: &View) -> Result<Found, String> {
    view.baseline.as_ref().map_err(Clone::clone)?;
    // read anew: this check removes what it rests on
    let accounts = Accounts::read(&view.host, view.who.uid_min, &view.policy.kept_users, view.baseline.as_ref().ok())?;
    let etc = etc(&view.host, &view.links())?;
    let mut found = Found::default();
    for (file, kind) in ACCOUNT_FILES {
        let Some(content) = etc.read(OsStr::new(file)).map_err(|error| format!("/etc/{file}: {error}"))? else {
            continue;
        };
        for line in lines(&content) {
            found.examined += 1;
            let name = String::from_utf8_lossy(line.split(|byte| *byte == b':').next().unwrap_or_default());
            if let Some(to) = accounts.judge(file, *kind, line) {
                let what = if to.is_some() { "members of " } else { "" };
                let item = Item::new(PathBuf::from("/etc").join(file), How::Line { from: line.to_owned(), to });
                found.add(item.saying(&format!("{what}{}", name.escape_default())));
            } else if let Some(why) = accounts.doubt(file, line) {
                let item = Item::new(PathBuf::from("/etc").join(file), How::Nothing(why));
                found.add(item.saying(&format!("{}: {why}", name.escape_default())));
            }
        }
    }
    Ok(found)
}
