//! Every fixed statement, prepared on a database. For the suite, which does it on both: a statement
//! that one of them refuses is found before anybody runs it.

use crate::db::{Connection, Dialect, Pair};
use crate::error::DbError;
use crate::servers::Newest;
use crate::store::{Options, connect};
use crate::{
    agent, audit, boot_node, boot_workflow, census, credential, execution, finding, hold, idempotency, image,
    install_order, job, log, maas_machine, machine, newest, node, observation, pin, plan, postgres, run, schema,
    session, site, site_sight, step_log, sweep, switch, task, task_output, token,
};
use domain::Timestamp;

type Named<T> = &'static [(&'static str, T)];

const STATEMENTS: Named<Named<&'static str>> = &[
    ("agent", agent::STATEMENTS),
    ("audit", audit::STATEMENTS),
    ("boot_node", boot_node::STATEMENTS),
    ("boot_workflow", boot_workflow::STATEMENTS),
    ("census", census::STATEMENTS),
    ("credential", credential::STATEMENTS),
    ("execution", execution::STATEMENTS),
    ("finding", finding::STATEMENTS),
    ("hold", hold::STATEMENTS),
    ("idempotency", idempotency::STATEMENTS),
    ("image", image::STATEMENTS),
    ("install_order", install_order::STATEMENTS),
    ("job", job::STATEMENTS),
    ("log", log::STATEMENTS),
    ("maas_machine", maas_machine::STATEMENTS),
    ("machine", machine::STATEMENTS),
    ("newest", newest::STATEMENTS),
    ("node", node::STATEMENTS),
    ("observation", observation::STATEMENTS),
    ("pin", pin::STATEMENTS),
    ("plan", plan::STATEMENTS),
    ("run", run::STATEMENTS),
    ("schema", &[("VERSION", schema::VERSION)]),
    ("session", session::STATEMENTS),
    ("site", site::STATEMENTS),
    ("site_sight", site_sight::STATEMENTS),
    ("step_log", step_log::STATEMENTS),
    ("sweep", sweep::STATEMENTS),
    ("switch", switch::STATEMENTS),
    ("task", task::STATEMENTS),
    ("task_output", task_output::STATEMENTS),
    ("token", token::STATEMENTS),
];

const PAIRS: Named<Named<Pair>> = &[
    ("agent", agent::PAIRS),
    ("boot_node", boot_node::PAIRS),
    ("credential", credential::PAIRS),
    ("execution", execution::PAIRS),
    ("finding", finding::PAIRS),
    ("image", image::PAIRS),
    ("job", job::PAIRS),
    ("maas_machine", maas_machine::PAIRS),
    ("machine", machine::PAIRS),
    ("node", node::PAIRS),
    ("pin", pin::PAIRS),
    ("session", session::PAIRS),
    ("site", site::PAIRS),
    ("site_sight", site_sight::PAIRS),
    ("task", task::PAIRS),
    ("token", token::PAIRS),
];

/// Brings the database to this binary's schema, prepares each statement on it, and says what became of
/// each. Blocks.
#[doc(hidden)]
pub fn prepare_all(options: &Options) -> Vec<(String, Result<(), String>)> {
    let opened = connect(options, &Newest::default(), false).and_then(|mut connection| {
        schema::migrate(connection.as_mut(), Timestamp::default())?;
        Ok(connection)
    });
    match opened {
        Ok(mut connection) => prepare_on(connection.as_mut()),
        Err(e) => vec![("opening".to_owned(), Err(format!("{e:?}")))],
    }
}

fn prepare_on(connection: &mut dyn Connection) -> Vec<(String, Result<(), String>)> {
    let dialect = connection.dialect();
    let mut texts: Vec<(String, &str)> = Vec::new();
    for (module, statements) in STATEMENTS {
        texts.extend(statements.iter().map(|(name, text)| (format!("{module}::{name}"), *text)));
    }
    for (module, pairs) in PAIRS {
        texts.extend(pairs.iter().map(|(name, pair)| (format!("{module}::{name} (pair)"), pair.get(dialect))));
    }
    if dialect == Dialect::Postgres {
        texts.push(("postgres::FLUSH".to_owned(), postgres::FLUSH));
        texts.push(("postgres::RECORD".to_owned(), &postgres::RECORD));
    }
    texts.into_iter().map(|(name, text)| (name, connection.prepare(text).map_err(told))).collect()
}

fn told(e: DbError) -> String {
    format!("{e:?}")
}
