//! The sites that the server knows: each asked, through the server, whether all is there that onboarding will need.

use super::report::Report;
use crate::cli::{ClientOptions, Target, call, connect_as};
use proto::millwright::v1::{CheckSiteRequest, ListSitesRequest};

/// Sites that are looked at; of more, the first.
const SITES_MAX: i32 = 100;

/// Without a word where the server cannot be asked: that is told already.
pub async fn check(report: &mut Report, options: &ClientOptions) {
    let Ok(target) = Target::resolve(options) else { return };
    let Ok(clients) = connect_as(&target).await else { return };
    let request = ListSitesRequest { page_size: SITES_MAX, ..ListSitesRequest::default() };
    let sites = match call(clients.sites.clone().list_sites(request)).await {
        Ok(page) => {
            if !page.next_page_token.is_empty() {
                let what = format!("there are more than {SITES_MAX} sites, and only the first of them are looked at");
                report.doubtful("site", what, "millwright site check NAME");
            }
            page.sites
        }
        // a server from before there were sites, or a token that may not ask
        Err(_) => return,
    };
    for site in sites {
        let asked = call(clients.sites.clone().check_site(CheckSiteRequest { name: site.name.clone() })).await;
        let found = match asked {
            Ok(found) => found,
            Err(e) => {
                report.error("site", &e);
                continue;
            }
        };
        let mut fine = 0;
        for point in &found.points {
            let what = format!("{}: {}", site.name, point.found);
            match point.verdict.as_str() {
                "failed" => report.failed("site", what, &point.todo),
                "warning" => report.doubtful("site", what, &point.todo),
                _ => fine += 1,
            }
        }
        if fine == found.points.len() {
            report.fine("site", format!("{}: MAAS {}, {fine} points looked at", site.name, found.maas_version));
        }
    }
}
