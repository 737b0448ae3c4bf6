//! The history: every move, newest first, in pages, through the API and in the database.

use crate::on_both;
use crate::site::MAC;
use serde_json::{Value, json};

on_both!(pages_of_it_fit_together_and_the_view_says_the_same, |site| {
    let id = site.active(MAC).await;
    let page = |query: &'static str| {
        let (site, id) = (&site, &id);
        async move { site.http.get(&format!("/api/v1/nodes/{id}/history{query}")).await }
    };
    let whole = page("").await.ok();
    assert_eq!((whole["total"].as_i64(), whole["data"].as_array().map(Vec::len)), (Some(5), Some(5)), "{whole}");
    let (first, rest) = (page("?limit=2").await.ok(), page("?limit=200&offset=2").await.ok());
    assert_eq!((first["total"].as_i64(), rest["total"].as_i64()), (Some(5), Some(5)));
    let mut together = first["data"].as_array().expect("rows").clone();
    together.extend(rest["data"].as_array().expect("rows").clone());
    assert_eq!(Value::from(together), whole["data"]);
    let newest = &whole["data"][0];
    let keys = ["id", "from_state", "to_state", "triggered_by", "user_id", "comment", "metadata", "created_at"];
    let mut have: Vec<&String> = newest.as_object().expect("an object").keys().collect();
    have.sort();
    let mut want = keys.map(str::to_owned).to_vec();
    want.sort();
    assert_eq!(have, want.iter().collect::<Vec<_>>());
    assert_eq!((newest["comment"].clone(), newest["metadata"].clone()), (Value::Null, Value::Null), "{newest}");
    assert!(newest["created_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{newest}");
    for bad in ["?limit=0", "?limit=201", "?limit=x", "?offset=-1"] {
        assert_eq!(page(bad).await.status(), 400, "{bad}");
    }
    site.http.get("/api/v1/nodes/btn_nobody/history").await.refused(404, "BOOT_NODE_NOT_FOUND");
    site.set(&id, &json!({ "state": "migrating", "comment": "new board" })).await.ok();
    assert_eq!(site.history(&id).await[0]["comment"], "new board");
    // the same, past us: the view that the documents name
    let newest = "FROM node_state_logs WHERE node_id = $1 ORDER BY CAST(id AS BIGINT) DESC LIMIT 1";
    let row: [String; 4] = match (site.server.fleet.database_file(), site.server.fleet.postgres()) {
        (Some(file), _) => {
            let db = rusqlite::Connection::open(file).expect("opens");
            let sql = format!("SELECT to_state, triggered_by, user_id, comment {newest}");
            let read = |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]);
            db.query_row(&sql, [&id], read).expect("a row")
        }
        (None, Some(config)) => {
            let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connects");
            tokio::spawn(async move { drop(connection.await) });
            let sql = format!("SELECT to_state, triggered_by, user_id, comment, created_at {newest}");
            let row = client.query_one(&sql, &[&id]).await.expect("a row");
            let at: std::time::SystemTime = row.get(4);
            assert!(at > std::time::SystemTime::UNIX_EPOCH, "a point in time, as the database has them");
            [row.get(0), row.get(1), row.get(2), row.get(3)]
        }
        (None, None) => panic!("neither a file nor a server"),
    };
    assert_eq!(row, ["migrating", "admin", "tester", "new board"]);
});
