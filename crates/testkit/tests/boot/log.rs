//! The program's own log: every move of a boot node is one line there, whoever made it.

use crate::site::{MAC, Site};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tracing_subscriber::filter::LevelFilter;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_move_is_one_line() {
    let sink = Sink::default();
    let writer = sink.clone();
    // the whole process's: what moves is written by a thread of the store
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only one of its kind");
    let site = Site::new().await;
    // by itself, by a person, by its reports, by their promotion, by losing an attempt, by its third failure
    site.script(&format!("mac={MAC}")).await;
    site.patch(MAC, &json!({ "group": "promoted" })).await.ok();
    let (id, token) = site.installing(MAC).await;
    assert_eq!(site.says(&token, MAC, "complete", json!({})).await.1, "active");
    site.moved(&id, "reprovision").await;
    site.moved(&id, "pending").await;
    for _ in 0..3 {
        let token = site.token(MAC).await.expect("an attempt");
        site.says(&token, MAC, "started", json!({})).await;
    }
    assert_eq!(site.token(MAC).await, None);
    assert_eq!(site.state(&id).await, "install_failed");
    site.set(&id, &json!({ "state": "retired", "comment": "scrapped" })).await.ok();
    let moves = site.moves(&id).await;
    assert_eq!(moves.len(), 10, "{moves:?}");
    let text = String::from_utf8_lossy(&sink.0.lock().expect("no panic")).into_owned();
    let told: Vec<&str> = text.lines().filter(|l| l.contains("a boot node moved") && l.contains(&id)).collect();
    let expected: Vec<String> = moves.iter().map(|(from, to, _)| format!(" from={from} to={to} ")).collect();
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (line, edge) in told.iter().zip(&expected) {
        assert!(line.contains(edge), "{edge}: {line}");
    }
    assert!(told.last().is_some_and(|l| l.contains("actor=tester") && l.contains("scrapped")), "{told:#?}");
}
