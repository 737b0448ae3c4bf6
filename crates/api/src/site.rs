//! `SiteService`.

use crate::convert::timestamp;
use crate::error::to_status;
use crate::gate::{nothing, open};
use domain::site::{DiskRule, Erase, Layout, LinkMode, Profile, RoceNetwork, Site, SitePolicy, SiteState};
use domain::{Error, Timestamp};
use proto::millwright::v1 as pb;
use proto::millwright::v1::site_service_server::SiteService;
use service::{PageRequest, Service, SiteCheck, SiteMachine, SiteView};
use std::time::Duration;
use tonic::{Request, Response, Status};

pub(crate) struct Sites(pub Service);

/// Where nothing else is said.
const ARCHITECTURE: &str = "amd64/generic";

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

fn policy(p: &SitePolicy) -> pb::SitePolicy {
    pb::SitePolicy {
        poll_seconds: Some(seconds(p.poll)),
        list_seconds: Some(seconds(p.list)),
        calls_max: Some(p.calls_max),
        erase: p.erase.to_string(),
        keep_record: Some(p.keep_record),
        datasource_retries: Some(p.datasource_retries),
        hardware_sync: Some(p.hardware_sync),
        sync_intervals: Some(p.sync_intervals),
    }
}

fn policy_from(p: Option<pb::SitePolicy>) -> Result<SitePolicy, Error> {
    let (p, default) = (p.unwrap_or_default(), SitePolicy::default());
    let span = |seconds: Option<u32>, or: Duration| seconds.map_or(or, |s| Duration::from_secs(s.into()));
    Ok(SitePolicy {
        poll: span(p.poll_seconds, default.poll),
        list: span(p.list_seconds, default.list),
        calls_max: p.calls_max.unwrap_or(default.calls_max),
        erase: match p.erase.as_str() {
            "" => default.erase,
            text => Erase::parse("policy.erase", text)?,
        },
        keep_record: p.keep_record.unwrap_or(default.keep_record),
        datasource_retries: p.datasource_retries.unwrap_or(default.datasource_retries),
        hardware_sync: p.hardware_sync.unwrap_or(default.hardware_sync),
        sync_intervals: p.sync_intervals.unwrap_or(default.sync_intervals),
    })
}

fn profile(p: &Profile) -> pb::SiteProfile {
    let disk = &p.boot_disk;
    let roce = |r: &RoceNetwork| pb::RoceNetwork {
        interface: r.interface.clone(),
        subnet: r.subnet.clone(),
        mode: r.mode.to_string(),
        mtu: r.mtu,
    };
    pb::SiteProfile {
        name: p.name.clone(),
        architecture: p.architecture.clone(),
        series: p.series.clone(),
        kernel: p.kernel.clone(),
        layout: p.layout.to_string(),
        root_size: p.root_size.clone(),
        boot_disk: Some(pb::DiskRule {
            model: disk.model.clone(),
            tag: disk.tag.clone(),
            min_bytes: disk.min_bytes,
            max_bytes: disk.max_bytes,
        }),
        pxe_subnet: p.pxe_subnet.clone(),
        roce: p.roce.iter().map(roce).collect(),
        cloud_init: p.cloud_init.clone(),
        agent_url: p.agent_url.clone(),
        agent_sha256: p.agent_sha256.clone(),
        tags: p.tags.clone(),
        pool: p.pool.clone(),
        zone: p.zone.clone(),
        testing_scripts: p.testing_scripts.clone(),
    }
}

fn profile_from(at: &str, p: pb::SiteProfile) -> Result<Profile, Error> {
    let roce = |(n, r): (usize, pb::RoceNetwork)| -> Result<RoceNetwork, Error> {
        let mode = match r.mode.as_str() {
            "" => LinkMode::Auto,
            text => LinkMode::parse(&format!("{at}.roce[{n}].mode"), text)?,
        };
        Ok(RoceNetwork { interface: r.interface, subnet: r.subnet, mode, mtu: r.mtu })
    };
    let disk = p.boot_disk.unwrap_or_default();
    Ok(Profile {
        name: p.name,
        architecture: if p.architecture.is_empty() { ARCHITECTURE.to_owned() } else { p.architecture },
        series: p.series,
        kernel: p.kernel,
        layout: match p.layout.as_str() {
            "" => Layout::Flat,
            text => Layout::parse(&format!("{at}.layout"), text)?,
        },
        root_size: p.root_size,
        boot_disk: DiskRule { model: disk.model, tag: disk.tag, min_bytes: disk.min_bytes, max_bytes: disk.max_bytes },
        pxe_subnet: p.pxe_subnet,
        roce: p.roce.into_iter().enumerate().map(roce).collect::<Result<_, _>>()?,
        cloud_init: p.cloud_init,
        agent_url: p.agent_url,
        agent_sha256: p.agent_sha256,
        tags: p.tags,
        pool: p.pool,
        zone: p.zone,
        testing_scripts: p.testing_scripts,
    })
}

fn site(view: SiteView) -> pb::Site {
    let (s, sight) = (view.site, view.sight.unwrap_or_default());
    let state = match (sight.unreachable_since, sight.last_poll_at) {
        (Some(_), _) => "unreachable",
        (None, Some(_)) => "reachable",
        (None, None) => "not_observed",
    };
    pb::Site {
        name: s.name,
        version: s.version,
        url: s.url,
        ca_pem: s.ca_pem,
        credentials_ref: s.credentials_ref,
        policy: Some(policy(&s.policy)),
        profiles: s.profiles.iter().map(profile).collect(),
        created_at: Some(timestamp(s.created_at)),
        updated_at: Some(timestamp(s.updated_at)),
        sight: Some(pb::SiteSight {
            state: state.to_owned(),
            last_poll_at: sight.last_poll_at.map(timestamp),
            last_list_at: sight.last_list_at.map(timestamp),
            unreachable_since: sight.unreachable_since.map(timestamp),
            unreachable_because: sight.unreachable_why,
            machines: view.machines,
            nodes: view.nodes,
        }),
    }
}

/// What the server itself says of a site is not read back.
fn site_from(s: Option<pb::Site>) -> Result<Site, Error> {
    let s = s.ok_or_else(|| Error::field("site", "must be given"))?;
    let profiles = s.profiles.into_iter().enumerate().map(|(n, p)| profile_from(&format!("profiles[{n}]"), p));
    Ok(Site {
        name: s.name,
        state: SiteState::Present,
        version: s.version,
        url: s.url,
        ca_pem: s.ca_pem,
        credentials_ref: s.credentials_ref,
        policy: policy_from(s.policy)?,
        profiles: profiles.collect::<Result<_, _>>()?,
        created_at: Timestamp::default(),
        updated_at: Timestamp::default(),
    })
}

pub(crate) fn machine(m: SiteMachine) -> pb::SiteMachine {
    let (node_id, node_name) = m.node.map(|(id, name)| (id.to_string(), name)).unwrap_or_default();
    let (class, observed) = (m.machine.told.class(), m.machine);
    let told = observed.told;
    pb::SiteMachine {
        site: observed.at.site,
        system_id: observed.at.system_id,
        hostname: told.hostname,
        status: told.status,
        status_name: told.status_name,
        class: class.to_string(),
        power_state: told.power_state,
        owner: told.owner,
        hardware_uuid: told.hardware_uuid,
        serial: told.serial,
        mac_addresses: told.macs,
        boot_mac: told.boot_mac,
        addresses: told.addresses,
        management_ip: told.management_ip,
        pool: told.pool,
        zone: told.zone,
        tags: told.tags,
        architecture: told.architecture,
        osystem: told.osystem,
        series: told.series,
        netboot: told.netboot,
        locked: told.locked,
        last_sync: told.last_sync,
        first_seen_at: Some(timestamp(observed.first_seen_at)),
        status_since: Some(timestamp(observed.status_since)),
        changed_at: Some(timestamp(observed.changed_at)),
        confirmed_at: Some(timestamp(m.confirmed_at)),
        absent_since: observed.absent_since.map(timestamp),
        node_id,
        node_name,
    }
}

fn checked(check: SiteCheck) -> pb::SiteCheck {
    let ok = check.is_ok();
    let points = check.points.into_iter().map(|point| pb::SiteCheckPoint {
        what: point.what.to_owned(),
        verdict: point.verdict.as_str().to_owned(),
        found: point.found,
        todo: point.todo,
    });
    pb::SiteCheck { name: check.name, ok, maas_version: check.maas_version, points: points.collect() }
}

fn named(site: Option<&pb::Site>) -> &str {
    site.map_or("", |site| site.name.as_str())
}

#[tonic::async_trait]
impl SiteService for Sites {
    async fn list_sites(
        &self,
        request: Request<pb::ListSitesRequest>,
    ) -> Result<Response<pb::ListSitesResponse>, Status> {
        let (_, r) = open(request, nothing)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_sites(&request).await.map_err(to_status)?;
        let sites = page.items.into_iter().map(site).collect();
        Ok(Response::new(pb::ListSitesResponse { sites, next_page_token: page.next_page_token }))
    }

    async fn create_site(&self, request: Request<pb::CreateSiteRequest>) -> Result<Response<pb::Site>, Status> {
        let (call, r) = open(request, |r| named(r.site.as_ref()))?;
        let new = site_from(r.site).map_err(to_status)?;
        Ok(Response::new(site(self.0.create_site(&call, new).await.map_err(to_status)?)))
    }

    async fn get_site(&self, request: Request<pb::GetSiteRequest>) -> Result<Response<pb::Site>, Status> {
        let (_, r) = open(request, |r| &r.name)?;
        Ok(Response::new(site(self.0.get_site(&r.name).await.map_err(to_status)?)))
    }

    async fn update_site(&self, request: Request<pb::UpdateSiteRequest>) -> Result<Response<pb::Site>, Status> {
        let (call, r) = open(request, |r| named(r.site.as_ref()))?;
        let new = site_from(r.site).map_err(to_status)?;
        Ok(Response::new(site(self.0.update_site(&call, new).await.map_err(to_status)?)))
    }

    async fn remove_site(&self, request: Request<pb::RemoveSiteRequest>) -> Result<Response<pb::Site>, Status> {
        let (call, r) = open(request, |r| &r.name)?;
        Ok(Response::new(site(self.0.remove_site(&call, &r.name).await.map_err(to_status)?)))
    }

    async fn check_site(&self, request: Request<pb::CheckSiteRequest>) -> Result<Response<pb::SiteCheck>, Status> {
        let (_, r) = open(request, |r| &r.name)?;
        Ok(Response::new(checked(self.0.check_site(&r.name).await.map_err(to_status)?)))
    }

    async fn list_site_machines(
        &self,
        request: Request<pb::ListSiteMachinesRequest>,
    ) -> Result<Response<pb::ListSiteMachinesResponse>, Status> {
        let (_, r) = open(request, |r| &r.site)?;
        let request = PageRequest { filter: r.filter, page_size: r.page_size, page_token: r.page_token };
        let page = self.0.list_site_machines(&r.site, &request).await.map_err(to_status)?;
        let machines = page.items.into_iter().map(machine).collect();
        Ok(Response::new(pb::ListSiteMachinesResponse { machines, next_page_token: page.next_page_token }))
    }

    async fn get_site_machine(
        &self,
        request: Request<pb::GetSiteMachineRequest>,
    ) -> Result<Response<pb::SiteMachine>, Status> {
        let (_, r) = open(request, |r| &r.site)?;
        Ok(Response::new(machine(self.0.get_site_machine(&r.site, &r.system_id).await.map_err(to_status)?)))
    }
}
