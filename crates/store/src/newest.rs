//! The newest moment written in a database: time goes on from there, even when the wall clock was set back
//! while no server ran. Otherwise whatever waits would wait so much longer, and nothing seen now would count
//! as news.

use crate::db::Connection;
use crate::error::DbError;
use domain::Timestamp;

crate::statements! {
    NEWEST = "SELECT COALESCE(MAX(at), 0) FROM (SELECT at FROM transitions WHERE sequence = (SELECT MAX(sequence) FROM transitions) UNION ALL SELECT MAX(started_at) FROM sessions UNION ALL SELECT MAX(started_at) FROM sweeps UNION ALL SELECT MAX(finished_at) FROM sweeps UNION ALL SELECT MAX(updated_at) FROM executions WHERE status IN ('ready', 'running', 'waiting')) AS moments";
}

pub(crate) fn newest(connection: &mut dyn Connection) -> Result<Timestamp, DbError> {
    connection.rows(NEWEST, &[])?.first().map_or(Ok(Timestamp::from_micros(0)), |row| row.time(0))
}
