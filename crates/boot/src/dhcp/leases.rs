//! Which card has which address, and until when. A card keeps its address: across renewals, after its lease has
//! ended as long as nobody else needs it, and after a restart, for what was given is kept (see [`LeaseKeeper`]).
//!
//! Cards are told apart by their hardware address alone. The standard lets a client name itself, but firmware, iPXE and
//! the installed system name the same card differently, and it must have one address through all three.
//!
//! The table cannot outgrow the ranges: there is at most one entry for an address.

use super::settings::Pool;
use crate::Mac;
use async_trait::async_trait;
use domain::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// So long an address waits for the client that it was offered to.
const OFFER: Duration = Duration::from_secs(30);
/// So long one is left alone that a client found in use by somebody else.
const QUARANTINE: Duration = Duration::from_secs(300);

/// An address that a card has, or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub address: Ipv4Addr,
    pub mac: Mac,
    /// In the past: remembered, so that the card gets it again.
    pub until: Timestamp,
}

/// Where leases outlive the process.
#[async_trait]
pub trait LeaseKeeper: Send + Sync + 'static {
    /// Everything that was kept.
    async fn all(&self) -> Result<Vec<Lease>, String>;
    /// In the place of what was known of this address. No client is told of a lease before this has answered.
    async fn keep(&self, lease: Lease) -> Result<(), String>;
}

/// Keeps them as long as the process lives.
#[derive(Debug, Default)]
pub struct InMemory(Mutex<BTreeMap<Ipv4Addr, Lease>>);

#[async_trait]
impl LeaseKeeper for InMemory {
    async fn all(&self) -> Result<Vec<Lease>, String> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect())
    }

    async fn keep(&self, lease: Lease) -> Result<(), String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(lease.address, lease);
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// None: somebody whom we did not give it to has it.
    holder: Option<Mac>,
    until: Timestamp,
    /// Taken by the client, not only offered.
    bound: bool,
}

/// The addresses of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    pool: Pool,
    reserved: BTreeSet<Ipv4Addr>,
    /// Nobody has had it.
    free: BTreeSet<Ipv4Addr>,
    entries: BTreeMap<Ipv4Addr, Entry>,
    of_card: HashMap<Mac, Ipv4Addr>,
    /// Entries that may go to somebody else, those that ended longest ago first.
    by_end: BTreeSet<(Timestamp, Ipv4Addr)>,
}

/// All of them. A pool is meant by its place in the list that they were made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases(Vec<Table>);

impl Leases {
    /// `own` is our own address, which no client gets.
    pub fn new(pools: Vec<Pool>, own: Ipv4Addr) -> Self {
        Self(pools.into_iter().map(|pool| Table::new(pool, own)).collect())
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter().map(|table| &table.pool)
    }

    /// Takes up what was kept; answers how many of them no longer fit the pools and were left out.
    pub fn load(&mut self, mut kept: Vec<Lease>) -> usize {
        // of several for one card the newest is the one it has
        kept.sort_by_key(|lease| lease.until);
        let mut left_out = 0;
        for lease in kept {
            let place = self.0.iter_mut().find(|table| table.may_have(lease.mac, lease.address));
            match place {
                Some(table) => {
                    table.set(lease.address, Entry { holder: Some(lease.mac), until: lease.until, bound: true });
                }
                None => left_out += 1,
            }
        }
        left_out
    }

    /// As [`LeaseKeeper::all`] would answer.
    pub fn all(&self) -> Vec<Lease> {
        let entries = self.0.iter().flat_map(|table| &table.entries).filter(|(_, entry)| entry.bound);
        entries.filter_map(|(a, e)| Some(Lease { address: *a, mac: e.holder?, until: e.until })).collect()
    }

    /// Who has this address now.
    pub fn leased_to(&self, address: Ipv4Addr, now: Timestamp) -> Option<Mac> {
        let entry = self.0.iter().find_map(|table| table.entries.get(&address))?;
        entry.holder.filter(|_| entry.bound && entry.until > now)
    }

    /// An address for this card, held for a while.
    pub fn offer(&mut self, pool: usize, mac: Mac, wanted: Option<Ipv4Addr>, now: Timestamp) -> Option<Ipv4Addr> {
        self.0.get_mut(pool)?.offer(mac, wanted, now)
    }

    /// This address, if the card may have it.
    pub fn grant(&mut self, pool: usize, mac: Mac, address: Ipv4Addr, now: Timestamp) -> Option<Lease> {
        self.0.get_mut(pool)?.grant(mac, address, now)
    }

    /// The client needs it no more. `None`: it was not its own.
    pub fn release(&mut self, mac: Mac, address: Ipv4Addr, now: Timestamp) -> Option<Lease> {
        self.held(mac, address, now)?.set(address, Entry { holder: Some(mac), until: now, bound: true });
        Some(Lease { address, mac, until: now })
    }

    /// The client found somebody else there. `None`: it was not its own to decline.
    pub fn decline(&mut self, mac: Mac, address: Ipv4Addr, now: Timestamp) -> Option<Lease> {
        let table = self.held(mac, address, now)?;
        table.set(address, Entry { holder: None, until: now.plus(QUARANTINE), bound: false });
        Some(Lease { address, mac, until: now })
    }

    /// The table where this card has this address, offered or taken.
    fn held(&mut self, mac: Mac, address: Ipv4Addr, now: Timestamp) -> Option<&mut Table> {
        self.0.iter_mut().find(|table| {
            table.entries.get(&address).is_some_and(|entry| entry.holder == Some(mac) && entry.until > now)
        })
    }
}

impl Table {
    fn new(pool: Pool, own: Ipv4Addr) -> Self {
        let range = u32::from(pool.first)..=u32::from(pool.last);
        let mut free: BTreeSet<Ipv4Addr> = range.map(Ipv4Addr::from).collect();
        for taken in pool.reserved.values().chain(&pool.router).chain([&own]) {
            free.remove(taken);
        }
        let reserved = pool.reserved.values().copied().collect();
        Self { pool, reserved, free, entries: BTreeMap::new(), of_card: HashMap::new(), by_end: BTreeSet::new() }
    }

    fn may_have(&self, mac: Mac, address: Ipv4Addr) -> bool {
        match self.pool.reserved.get(&mac) {
            Some(reserved) => *reserved == address,
            // free, or it has an entry of its own: what is neither is ours, the router's or reserved
            None => self.free.contains(&address) || self.by_end_has(address),
        }
    }

    fn by_end_has(&self, address: Ipv4Addr) -> bool {
        self.entries.get(&address).is_some_and(|entry| self.by_end.contains(&(entry.until, address)))
    }

    fn set(&mut self, address: Ipv4Addr, entry: Entry) {
        self.clear(address);
        self.free.remove(&address);
        if let Some(mac) = entry.holder {
            // a card has one address here: the one before is nobody's
            if let Some(before) = self.of_card.get(&mac).copied() {
                self.clear(before);
            }
            self.of_card.insert(mac, address);
        }
        if !self.reserved.contains(&address) {
            self.by_end.insert((entry.until, address));
        }
        self.entries.insert(address, entry);
    }

    fn clear(&mut self, address: Ipv4Addr) {
        let Some(entry) = self.entries.remove(&address) else { return };
        if self.by_end.remove(&(entry.until, address)) {
            self.free.insert(address);
        }
        if let Some(mac) = entry.holder {
            self.of_card.remove(&mac);
        }
    }

    fn offer(&mut self, mac: Mac, wanted: Option<Ipv4Addr>, now: Timestamp) -> Option<Ipv4Addr> {
        let address = self.choose(mac, wanted, now)?;
        let runs = self.entries.get(&address).is_some_and(|entry| entry.until > now);
        match self.entries.get(&address).and_then(|entry| entry.holder) {
            // somebody else uses what is reserved for it
            None if runs => return None,
            Some(holder) if runs && holder == mac => {}
            _ => self.set(address, Entry { holder: Some(mac), until: now.plus(OFFER), bound: false }),
        }
        Some(address)
    }

    fn choose(&self, mac: Mac, wanted: Option<Ipv4Addr>, now: Timestamp) -> Option<Ipv4Addr> {
        if let Some(own) = self.pool.reserved.get(&mac).or_else(|| self.of_card.get(&mac)) {
            return Some(*own);
        }
        if let Some(wanted) = wanted.filter(|address| self.free.contains(address)) {
            return Some(wanted);
        }
        // where to begin follows from the card, so that it is likely the same even when all is forgotten
        let begin = self.begin(mac);
        let unused = self.free.range(begin..).next().or_else(|| self.free.iter().next());
        let ended = || self.by_end.first().filter(|(until, _)| *until <= now).map(|(_, address)| address);
        unused.or_else(ended).copied()
    }

    fn begin(&self, mac: Mac) -> Ipv4Addr {
        let hash = mac.octets().iter().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
        let (first, last) = (u32::from(self.pool.first), u32::from(self.pool.last));
        Ipv4Addr::from(first + hash % (last - first + 1))
    }

    fn grant(&mut self, mac: Mac, address: Ipv4Addr, now: Timestamp) -> Option<Lease> {
        let own = self.pool.reserved.get(&mac).or_else(|| self.of_card.get(&mac)).copied();
        let declined = self.entries.get(&address).is_some_and(|e| e.holder.is_none() && e.until > now);
        let may = own.map_or_else(|| self.free.contains(&address), |own| own == address && !declined);
        may.then(|| {
            let until = now.plus(self.pool.lease);
            self.set(address, Entry { holder: Some(mac), until, bound: true });
            Lease { address, mac, until }
        })
    }
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;
