//! Sites as most tests begin with them, and machines as a MAAS might have told of them.

use domain::Timestamp;
use domain::maas_machine::{ObservedMachine, Told};
use domain::node::MaasRef;
use domain::site::{DiskRule, Layout, Profile, Site, SitePolicy, SiteState};

pub fn profile(name: &str) -> Profile {
    Profile {
        name: name.to_owned(),
        architecture: "amd64/generic".to_owned(),
        series: "noble".to_owned(),
        kernel: String::new(),
        layout: Layout::Flat,
        root_size: String::new(),
        boot_disk: DiskRule::default(),
        pxe_subnet: String::new(),
        roce: Vec::new(),
        cloud_init: String::new(),
        agent_url: String::new(),
        agent_sha256: String::new(),
        tags: Vec::new(),
        pool: String::new(),
        zone: String::new(),
        testing_scripts: Vec::new(),
    }
}

/// A site with one profile, reached with this credential.
pub fn site(name: &str, credential: &str) -> Site {
    Site {
        name: name.to_owned(),
        state: SiteState::Present,
        version: 0,
        url: format!("https://{name}.example:5443/MAAS"),
        ca_pem: String::new(),
        credentials_ref: credential.to_owned(),
        policy: SitePolicy::default(),
        profiles: vec![profile("gpu")],
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
    }
}

/// A machine that is Ready.
pub fn observed(site: &str, system_id: &str) -> ObservedMachine {
    let at = Timestamp::from_micros(1);
    ObservedMachine {
        at: MaasRef { site: site.to_owned(), system_id: system_id.to_owned() },
        told: Told {
            status: 4,
            status_name: "Ready".to_owned(),
            power_state: "off".to_owned(),
            hostname: format!("host-{system_id}"),
            ..Told::default()
        },
        settled: None,
        first_seen_at: at,
        status_since: at,
        changed_at: at,
        absent_since: None,
    }
}
