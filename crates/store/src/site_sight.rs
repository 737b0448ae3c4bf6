//! How each site was last seen, as a whole: one row for each, so that of several servers only one looks at a time, and so
//! that what a list confirmed needs no row of its own.

use crate::db::{Pair, Row, Val, params};
use crate::error::{DbError, TxResult};
use crate::point::Point;
use crate::tx::Tx;
use domain::Timestamp;
use domain::maas_machine::Sight;

crate::statements! {
    GET = "SELECT round, observer, last_poll_at, last_list_at, event_mark, unreachable_since, unreachable_why FROM site_sights WHERE site = $1";
    FIRST = "INSERT INTO site_sights(site, round, observer, last_poll_at, last_list_at, event_mark, unreachable_since, unreachable_why) VALUES ($1, 1, $2, $3, $4, $5, $6, $7) ON CONFLICT (site) DO NOTHING";
    FORGET = "DELETE FROM site_sights WHERE site = $1";
    NEXT = "UPDATE site_sights SET round = round + 1, observer = $3, last_poll_at = $4, last_list_at = $5, event_mark = $6, unreachable_since = $7, unreachable_why = $8 WHERE site = $1 AND round = $2";
}

macro_rules! lock {
    () => {
        "SELECT 1 FROM site_sights WHERE site = $1"
    };
}

const LOCK: Pair = Pair { sqlite: lock!(), postgres: concat!(lock!(), " FOR UPDATE") };

pub(crate) const PAIRS: &[(&str, Pair)] = &[("LOCK", LOCK)];

fn read(row: &Row, _: Timestamp) -> Result<Sight, DbError> {
    Ok(Sight {
        round: row.uint(0)?,
        observer: row.string(1)?,
        last_poll_at: row.maybe(2, Row::time)?,
        last_list_at: row.maybe(3, Row::time)?,
        event_mark: row.maybe(4, Row::int)?,
        unreachable_since: row.maybe(5, Row::time)?,
        unreachable_why: row.string(6)?,
    })
}

pub fn of_site(site: &str) -> Point<Sight> {
    Point { sql: GET, params: vec![Val::from(site)], read }
}

/// Whether nobody has looked since this round; until the transaction ends, nobody will have.
pub fn is_still(tx: &mut Tx<'_>, site: &str, round: u64) -> TxResult<bool> {
    Ok(tx.locked(LOCK, &of_site(site))?.map_or(0, |sight| sight.round) == round)
}

/// What was seen after `sight.round`. `false`: somebody else has looked meanwhile, and this is not written.
pub fn put(tx: &mut Tx<'_>, site: &str, sight: &Sight) -> TxResult<bool> {
    let mark = sight.event_mark.map_or(Val::Null, Val::Int);
    let (poll, list, since) = (sight.last_poll_at, sight.last_list_at, sight.unreachable_since);
    let (observer, why) = (&sight.observer, &sight.unreachable_why);
    let changed = match sight.round {
        0 => tx.exec(FIRST, params![site, observer, poll, list, mark, since, why])?,
        round => tx.exec(NEXT, params![site, round, observer, poll, list, mark, since, why])?,
    };
    Ok(changed == 1)
}

/// How a site was seen that is no more.
pub fn forget(tx: &mut Tx<'_>, site: &str) -> TxResult<()> {
    tx.exec(FORGET, params![site])?;
    Ok(())
}
