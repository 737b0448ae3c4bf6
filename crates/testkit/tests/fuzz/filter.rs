//! The filter language: what parses gives the same machines by SQL, on both databases, and by judging each
//! machine by hand.

use crate::wire::shape;
use domain::filter::Filter;
use domain::lifecycle::State as _;
use domain::machine::Machine;
use store::{Options, Store};
use testkit::ambient::VirtualAmbient;
use testkit::fleet::{Database, Fleet, admin, labelled, quick};
use testkit::fuzz::Fuzz;

const SEEDS: &[&str] = &[
    "",
    "machine_id=m-1",
    "phase=READY AND labels.env=prod",
    "NOT (labels.env=prod OR labels.env:*) AND rack!=r1",
    "labels:env AND -phase=RMA",
    "labels.sim.latency_ms=0 OR labels.\"a b\"=\"c \\\"d\\\"\"",
    "active_run_id=\"\" OR provider=sim",
    "serial_number=S-1 AND customer_id!=acme",
    "system_uuid=00000000-0000-0000-0000-000000000001",
    "location='x' AND target_cluster_ref=cluster-a",
    "((((phase=READY))))",
    "a<1",
    "f(x)=1",
    "phase=SLEEPING",
    "phase READY",
    "phase=*",
    "labels.env:prod",
];

const WORDS: &[&str] = &[
    " AND ",
    " OR ",
    "NOT ",
    "-",
    "(",
    ")",
    "=",
    "!=",
    ":",
    "<",
    ">=",
    "*",
    "\"",
    "'",
    "\\",
    ".",
    "labels.",
    "labels.env",
    "machine_id",
    "phase",
    "provider",
    "rack",
    "location",
    "serial_number",
    "system_uuid",
    "customer_id",
    "target_cluster_ref",
    "active_run_id",
    "READY",
    "FACTORY_READY",
    "prod",
    "test",
    "m-1",
    "r1",
    "é",
    "a b",
    "''",
    "\"\"",
];

/// A field of a machine as the filter names it.
fn field(machine: &Machine, name: &str) -> Option<String> {
    let s = &machine.spec;
    Some(match name {
        "machine_id" => machine.id.to_string(),
        "phase" => machine.phase.as_str().to_owned(),
        "provider" => s.provider.clone(),
        "location" => s.location.clone(),
        "rack" => s.rack.clone(),
        "serial_number" => s.serial_number.clone(),
        "system_uuid" => s.system_uuid.clone(),
        "customer_id" => s.customer_id.clone(),
        "target_cluster_ref" => s.target_cluster_ref.clone(),
        "active_run_id" => machine.active_run.as_ref().map_or(String::new(), |r| r.id.to_string()),
        label => return machine.labels.get(label.strip_prefix("labels.")?).cloned(),
    })
}

struct Both {
    runtime: tokio::runtime::Runtime,
    stores: Vec<(&'static str, Store)>,
    machines: Vec<Machine>,
    _fleets: Vec<Fleet>,
}

impl Both {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let inside = runtime.enter();
        let fleets = vec![Fleet::new(Database::Memory, 1), Fleet::new(Database::Postgres, 1)];
        drop(inside);
        let stores = vec![("SQLite", fleets[0].store.clone()), ("PostgreSQL", fleets[1].store.clone())];
        let mut machines = Vec::new();
        for fleet in &fleets {
            machines = runtime.block_on(populate(fleet));
        }
        Self { runtime, stores, machines, _fleets: fleets }
    }

    fn agree(&self, filter: &Filter) -> Result<String, String> {
        let by_hand: Vec<&str> =
            self.machines.iter().filter(|m| filter.matches(&|name| field(m, name))).map(|m| m.id.as_str()).collect();
        for (name, store) in &self.stores {
            let filter = filter.clone();
            let listing = store.read(move |tx| store::machine::list(tx, &filter, "", 1_000));
            let found = self.runtime.block_on(listing).map_err(|e| format!("{name} refuses what parses: {e}"))?;
            let found: Vec<&str> = found.iter().map(|m| m.id.as_str()).collect();
            if found != by_hand {
                return Err(format!("{name} finds {found:?}, by hand it is {by_hand:?}"));
            }
        }
        Ok(format!("{} of {}", by_hand.len(), self.machines.len()))
    }
}

async fn populate(fleet: &Fleet) -> Vec<Machine> {
    let engine = fleet.engine(quick("fuzz"), None);
    let service = fleet.service(&engine).await;
    for i in 0..12 {
        let id = format!("m-{i:02}");
        let mut machine = labelled(&id, &[]);
        machine.labels.clear();
        for (n, (key, value)) in
            [("env", "prod"), ("env", "test"), ("a b", "c \"d\""), ("é", "é"), ("x.y", "")].iter().enumerate()
        {
            if (i + n) % 3 == 0 {
                machine.labels.insert((*key).to_owned(), (*value).to_owned());
            }
        }
        machine.spec.rack = format!("r{}", i % 4);
        machine.spec.serial_number = if i % 2 == 0 { format!("S-{i}") } else { String::new() };
        machine.spec.customer_id = if i % 3 == 0 { "acme".into() } else { String::new() };
        service.register_machine(&admin(), machine).await.expect("registers");
    }
    fleet.store.read(|tx| store::machine::list(tx, &Filter::Everything, "", 1_000)).await.expect("lists")
}

#[test]
fn filter() {
    Fuzz::new("filter", module_path!()).seeds(SEEDS.iter().map(|s| s.as_bytes())).words(WORDS).inputs(4_000).run(
        || {
            let both = Both::new();
            move |input| {
                let Ok(text) = std::str::from_utf8(input) else { return Ok("no text".to_owned()) };
                match store::machine::FILTER.parse(text) {
                    Ok(filter) => both.agree(&filter).map(|found| format!("{found} {}", kinds(&filter))),
                    Err(e) if e.message.starts_with("filter: ") && e.details.contains_key("field") => {
                        Ok(shape(&e.message))
                    }
                    Err(e) => Err(format!("an error that does not name its field: {e:?}")),
                }
            }
        },
    );
}

/// Which kinds of term a filter has, by their names.
fn kinds(filter: &Filter) -> String {
    let text = format!("{filter:?}");
    let known = ["And", "Or", "Not", "Is", "Label {", "HasLabel", "Everything"];
    known.into_iter().filter(|kind| text.contains(kind)).collect::<Vec<_>>().join(" ")
}

// an evaluator that agrees with itself proves nothing: the two are made to differ once
#[test]
fn a_disagreement_is_found() {
    let ambient = VirtualAmbient::new(1);
    let store = Store::open(&Options::Memory, ambient).expect("opens");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let fleet = {
        let _inside = runtime.enter();
        Fleet::new(Database::Memory, 1)
    };
    let machines = runtime.block_on(populate(&fleet));
    let both = Both { runtime, stores: vec![("empty", store)], machines, _fleets: vec![fleet] };
    assert!(both.agree(&Filter::Everything).is_err_and(|e| e.contains("by hand")));
}
