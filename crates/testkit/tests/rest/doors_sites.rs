//! Sites through both doors: what can be asked twice with one answer.

use crate::doors::{Case, case};
use crate::world::World;
use serde_json::json;
use store::{Caller, maas_machine};

pub async fn cases(world: &World) -> Vec<Case> {
    let key = json!({ "kind": "maas", "api_key": "a:b:c" });
    world.http.send("PUT", "/api/v1/credentials/door-maas", &[], key.to_string().as_bytes()).await.ok();
    let site = json!({
        "name": "door-site", "url": "https://maas.example:5443/MAAS", "credentials_ref": "door-maas",
        "profiles": [{ "name": "gpu", "series": "noble", "tags": ["gpu"] }],
    });
    world.http.post("/api/v1/admin/sites", &site).await.ok();
    let machine = testkit::sites::observed("door-site", "abc123");
    let put = move |tx: &mut store::Tx<'_>| maas_machine::put(tx, "door-site", std::slice::from_ref(&machine));
    world.api.server.service.store().write(&Caller::new("test"), "sites", put).await.expect("a machine");
    let at = "/admin/sites/door-site";
    let (name, of) = (json!({ "name": "door-site" }), json!({ "site": "door-site" }));
    let one = json!({ "site": "door-site", "system_id": "abc123" });
    let whole = json!({ "site": site });
    vec![
        case("millwright.v1.SiteService.ListSites", json!({}), "GET", "/admin/sites", None).apart_from(&["sight"]),
        case("millwright.v1.SiteService.CreateSite", whole.clone(), "POST", "/admin/sites", Some(site.clone()))
            .apart_from(&["sight"]),
        case("millwright.v1.SiteService.UpdateSite", whole, "PUT", at, Some(site)).apart_from(&["sight"]),
        case("millwright.v1.SiteService.GetSite", name.clone(), "GET", at, None).apart_from(&["sight"]),
        case("millwright.v1.SiteService.CheckSite", name, "GET", &format!("{at}/check"), None),
        case("millwright.v1.SiteService.ListSiteMachines", of, "GET", &format!("{at}/machines"), None),
        case("millwright.v1.SiteService.GetSiteMachine", one, "GET", &format!("{at}/machines/abc123"), None),
        case(
            "millwright.v1.SiteService.RemoveSite",
            json!({ "name": "nobody" }),
            "DELETE",
            "/admin/sites/nobody",
            None,
        ),
    ]
}
