//! A server with a workflow, and machines that boot from it.

use crate::client::{Answer, Http};
use serde_json::{Value, json};
use testkit::fleet::{Database, Fleet, quick};
use testkit::server::TestServer;

pub struct Site {
    pub server: TestServer,
    pub http: Http,
}

/// A card of its own for each test that needs one.
pub const MAC: &str = "52:54:00:4d:59:01";

/// On both databases.
#[macro_export]
macro_rules! on_both {
    ($name:ident, |$site:ident| $body:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            async fn run($site: $crate::site::Site) {
                $body
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                run($crate::site::Site::on(testkit::fleet::Database::Sqlite).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                run($crate::site::Site::on(testkit::fleet::Database::Postgres).await).await;
            }
        }
    };
}

impl Site {
    pub async fn new() -> Self {
        Self::on(Database::Sqlite).await
    }

    pub async fn on(database: Database) -> Self {
        let fleet = tokio::task::spawn_blocking(move || Fleet::new(database, 1)).await.expect("a fleet");
        let server = TestServer::start_with(fleet, quick("test")).await;
        let http = Http { url: server.url.clone(), token: server.token.clone() };
        let site = Self { server, http };
        for id in ["debian", "other"] {
            let workflow = json!({ "id": id, "name": id, "kernel": "vmlinuz", "initrd": "initrd", "cmdline": "quiet" });
            site.http.post("/api/v1/workflows", &workflow).await.ok();
        }
        site
    }

    /// Without any token, as firmware asks.
    pub async fn boot(&self, query: &str) -> Answer {
        self.http.send("GET", &format!("/api/v1/boot?{query}"), &[("Authorization", "-")], b"").await
    }

    pub async fn script(&self, query: &str) -> String {
        let answer = self.boot(query).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let script = answer.text();
        assert!(script.starts_with("#!ipxe\n"), "{script}");
        script
    }

    /// The token that a script hands out, if it serves an installer.
    pub async fn token(&self, mac: &str) -> Option<String> {
        let script = self.script(&format!("mac={mac}")).await;
        let word = script.split_whitespace().find_map(|word| word.strip_prefix("millwright.token="));
        word.map(str::to_owned)
    }

    pub async fn report(&self, token: Option<&str>, body: &Value) -> Answer {
        let bearer = token.map_or("-".to_owned(), |token| format!("Bearer {token}"));
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
        self.http.send("POST", "/api/v1/report", &headers, body.to_string().as_bytes()).await
    }

    /// A report of an installation, and whether it counted, in which state it left the node, and why not.
    pub async fn says(&self, token: &str, mac: &str, status: &str, more: Value) -> (bool, String, String) {
        let mut body = json!({ "mac_address": mac, "installation_status": status });
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let answer = self.report(Some(token), &body).await.ok();
        let text = |name: &str| answer[name].as_str().expect("a text").to_owned();
        (answer["applied"] == true, text("state"), text("reason"))
    }

    pub async fn node(&self, id: &str) -> Value {
        self.http.get(&format!("/api/v1/nodes/{id}")).await.ok()
    }

    pub async fn state(&self, id: &str) -> String {
        self.node(id).await["state"].as_str().expect("a state").to_owned()
    }

    pub async fn patch(&self, id: &str, body: &Value) -> Answer {
        self.http.patch(&format!("/api/v1/nodes/{id}"), body).await
    }

    pub async fn set(&self, id: &str, body: &Value) -> Answer {
        self.http.patch(&format!("/api/v1/nodes/{id}/state"), body).await
    }

    pub async fn moved(&self, id: &str, state: &str) -> Value {
        self.set(id, &json!({ "state": state })).await.ok()
    }

    /// A node that has booted once and is approved.
    pub async fn approved(&self, mac: &str) -> String {
        self.script(&format!("mac={mac}")).await;
        self.patch(mac, &json!({ "workflow_id": "debian" })).await.ok();
        let node = self.moved(mac, "pending").await;
        node["id"].as_str().expect("an id").to_owned()
    }

    /// One that says that it is being installed, and its token.
    pub async fn installing(&self, mac: &str) -> (String, String) {
        let id = self.approved(mac).await;
        let token = self.token(mac).await.expect("an installer");
        assert_eq!(self.says(&token, mac, "started", json!({})).await.1, "installing");
        (id, token)
    }

    /// One that was installed and verified.
    pub async fn active(&self, mac: &str) -> String {
        let (id, token) = self.installing(mac).await;
        assert_eq!(self.says(&token, mac, "complete", json!({})).await.1, "installed");
        assert_eq!(self.moved(&id, "active").await["state"], "active");
        id
    }

    pub async fn history(&self, id: &str) -> Vec<Value> {
        let answer = self.http.get(&format!("/api/v1/nodes/{id}/history?limit=200")).await.ok();
        answer["data"].as_array().expect("rows").clone()
    }

    /// Every move, the oldest first.
    pub async fn moves(&self, id: &str) -> Vec<(String, String, String)> {
        let text = |row: &Value, name: &str| row[name].as_str().expect("a text").to_owned();
        let rows = self.history(id).await;
        let read = |r: &Value| (text(r, "from_state"), text(r, "to_state"), text(r, "triggered_by"));
        rows.iter().rev().map(read).collect()
    }
}

/// Waits for a condition; bounded, and not a verdict about time.
pub async fn until<F: Future<Output = bool>>(what: &str, so: impl Fn() -> F) {
    for _ in 0..600 {
        if so().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("never happened: {what}");
}
