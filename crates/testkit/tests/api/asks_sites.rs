//! Requests about sites: the fleet's own, whoever the customer is.

use crate::asks::{Ask, Asks, ask, only};
use domain::Secret;
use proto::millwright::v1 as mw;
use service::NewCredential;
use store::{Caller, maas_machine};
use testkit::fleet::admin;

const KEY: &str = "a-maas-key";

impl Asks<'_> {
    async fn key(&self) {
        let (name, kind) = (KEY.to_owned(), "maas".to_owned());
        let new = NewCredential { name, kind, api_key: Secret::new("a:b:c"), ..NewCredential::default() };
        self.api.server.service.set_credential(&admin(), new).await.expect("a credential");
    }

    fn described(name: &str, pool: &str) -> mw::Site {
        mw::Site {
            name: name.to_owned(),
            url: "https://maas.example:5443/MAAS".to_owned(),
            credentials_ref: KEY.to_owned(),
            profiles: vec![mw::SiteProfile { name: "gpu".into(), pool: pool.into(), ..Default::default() }],
            ..Default::default()
        }
    }

    /// A site of its own, with one machine.
    pub(crate) async fn site(&self) -> String {
        self.key().await;
        let name = self.fresh("site");
        let new = testkit::sites::site(&name, KEY);
        self.api.server.service.create_site(&admin(), new).await.expect("a site");
        let (site, machine) = (name.clone(), testkit::sites::observed(&name, "abc123"));
        let put = move |tx: &mut store::Tx<'_>| maas_machine::put(tx, &site, std::slice::from_ref(&machine));
        self.api.server.service.store().write(&Caller::new("test"), "sites", put).await.expect("a machine");
        name
    }

    pub(crate) async fn of_sites(&self, method: &str) -> Option<Ask> {
        let system_id = || "abc123".to_owned();
        Some(match method {
            "ListSites" => {
                only(&mw::ListSitesRequest { filter: format!("name={}", self.site().await), ..Default::default() })
            }
            "GetSite" => only(&mw::GetSiteRequest { name: self.site().await }),
            "CreateSite" => {
                self.key().await;
                let new = || mw::CreateSiteRequest { site: Some(Self::described(&self.fresh("new"), "")) };
                ask(&new(), &new())
            }
            "UpdateSite" => {
                let name = self.site().await;
                let to = |pool: &str| mw::UpdateSiteRequest { site: Some(Self::described(&name, pool)) };
                ask(&to("one"), &to("two"))
            }
            "RemoveSite" => ask(
                &mw::RemoveSiteRequest { name: self.site().await },
                &mw::RemoveSiteRequest { name: self.site().await },
            ),
            "CheckSite" => only(&mw::CheckSiteRequest { name: self.site().await }),
            "ListSiteMachines" => only(&mw::ListSiteMachinesRequest { site: self.site().await, ..Default::default() }),
            "GetSiteMachine" => only(&mw::GetSiteMachineRequest { site: self.site().await, system_id: system_id() }),
            _ => return None,
        })
    }
}
