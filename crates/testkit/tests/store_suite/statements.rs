//! Every fixed statement is valid on both databases.

use crate::fixture::TestStore;
use store::{Options, prepare_all};

fn check(options: &Options) {
    let all = prepare_all(options);
    let bad: Vec<_> = all.iter().filter(|(_, result)| result.is_err()).collect();
    assert!(bad.is_empty(), "refused: {bad:#?}");
    for module in modules_with_statements() {
        let prefix = format!("{module}::");
        assert!(all.iter().any(|(name, _)| name.starts_with(&prefix)), "{module} is not in the list of prepare_all");
    }
}

/// The store's modules that declare statements or pairs, by their source.
fn modules_with_statements() -> Vec<String> {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/src");
    let mut modules = Vec::new();
    for entry in std::fs::read_dir(sources).expect("the store's sources") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if text.contains("crate::statements! {") || text.contains(": Pair = ") {
            modules.push(path.file_stem().expect("a name").to_string_lossy().into_owned());
        }
    }
    assert!(modules.len() >= 10, "only {modules:?}: has the macro got another name?");
    modules
}

#[test]
fn memory() {
    check(&Options::Memory);
}

#[test]
fn sqlite() {
    let folder = testkit::scratch::folder();
    check(&Options::Sqlite(folder.path().join("millwright.db")));
}

#[test]
fn postgres() {
    check(&Options::Postgres(Box::new(testkit::postgres::database())));
}

/// Lists are put together when they are asked for: every field of every filter, once.
#[tokio::test(flavor = "multi_thread")]
async fn every_filterable_field_has_a_column() {
    for store in [TestStore::memory().await, TestStore::sqlite().await, TestStore::postgres().await] {
        store
            .read(|tx| {
                for field in store::machine::FILTER.fields {
                    let word = field.example();
                    let filter = store::machine::FILTER.parse(&format!("{}={word}", field.name))?;
                    assert_eq!(store::machine::list(tx, &filter, "", 1)?, []);
                }
                for field in store::run::FILTER.fields {
                    let word = field.example();
                    let filter = store::run::FILTER.parse(&format!("{}={word}", field.name))?;
                    assert_eq!(store::run::list(tx, &filter, "", 1)?, []);
                }
                for field in store::execution::FILTER.fields {
                    let word = field.example();
                    let filter = store::execution::FILTER.parse(&format!("{}={word}", field.name))?;
                    assert_eq!(store::execution::list(tx, &filter, "", 1)?, []);
                }
                for field in store::boot_node::FILTER.fields {
                    let filter = store::boot_node::FILTER.parse(&format!("{}={}", field.name, field.example()))?;
                    assert_eq!(store::boot_node::list(tx, &filter, "", 1)?, []);
                }
                for field in store::boot_workflow::FILTER.fields {
                    let filter = store::boot_workflow::FILTER.parse(&format!("{}={}", field.name, field.example()))?;
                    assert_eq!(store::boot_workflow::list(tx, &filter, "", 1)?, []);
                }
                for field in store::finding::FILTER.fields {
                    let filter = store::finding::FILTER.parse(&format!("{}={}", field.name, field.example()))?;
                    assert_eq!(store::finding::list(tx, &filter, "", 1)?, []);
                }
                for field in store::node::FILTER.fields {
                    let filter = store::node::FILTER.parse(&format!("{}={}", field.name, field.example()))?;
                    for view in domain::node::View::ALL.map(Some).into_iter().chain([None]) {
                        assert_eq!(store::node::list(tx, &filter, view, "", 1)?, []);
                    }
                }
                for field in store::job::FILTER.fields {
                    let filter = store::job::FILTER.parse(&format!("{}={}", field.name, field.example()))?;
                    assert_eq!(store::job::list(tx, &filter, "", 1)?, []);
                }
                for field in store::task::FILTER.fields {
                    let filter = store::task::FILTER.parse(&format!("{}={}", field.name, field.example()))?;
                    assert_eq!(store::task::list(tx, &filter, "", 1)?, []);
                }
                Ok(())
            })
            .await
            .expect("every list works");
    }
}
