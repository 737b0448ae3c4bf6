//! `millwright site …`: the MAAS installations that machines come from.

use super::connect::{Clients, call, connect};
use super::dry_run::DryRun;
use super::exit::CliError;
use super::output::{self, Screen};
use super::plan_file::read_as;
use super::site_look::{self, check_lines, machine_sheet};
use super::text::clean;
use super::{ClientOptions, ListArgs};
use clap::{Args, Subcommand};
use proto::millwright::v1::{
    CheckSiteRequest, CreateSiteRequest, GetSiteMachineRequest, GetSiteRequest, ListSiteMachinesRequest,
    ListSitesRequest, RemoveSiteRequest, Site, SitePolicy, SiteProfile, UpdateSiteRequest,
};
use std::path::{Path, PathBuf};

const CREATE: &str = "millwright.v1.SiteService/CreateSite";
const UPDATE: &str = "millwright.v1.SiteService/UpdateSite";
const REMOVE: &str = "millwright.v1.SiteService/RemoveSite";

#[derive(Subcommand)]
pub enum SiteCommand {
    /// Create a site: a MAAS, and what its machines are made to
    #[command(after_help = "Examples:
  millwright credential set lab-maas --kind maas --api-key-file maas.key
  millwright site create lab --url https://maas.lab.example:5443/MAAS --credential lab-maas --maas-ca lab-ca.pem --series noble
  millwright site create --file lab.yaml
  millwright site create --file lab.toml --dry-run

A file is YAML, JSON or TOML (.toml) with the API's field names, and is needed for more than one profile:
  name: lab
  url: https://maas.lab.example:5443/MAAS
  credentials_ref: lab-maas
  policy: {poll_seconds: 10, list_seconds: 900, erase: quick, keep_record: true}
  profiles:
    - name: gpu
      architecture: amd64/generic
      series: noble
      layout: lvm
      boot_disk: {model: BOSS}
      roce:
        - {interface: 'ens*np0', subnet: 'cidr:10.20.0.0/16', mode: auto, mtu: 9000}
      tags: [gpu]
      pool: gpu
      agent_url: https://files.example/millwright-agent
      agent_sha256: 9f86d081…
A profile's cloud_init begins with #cloud-config and has {{ bundle_base64 }} in it; beside that there are
  {{ hostname }} {{ node_id }} {{ node_name }} {{ site }} {{ install_script_base64 }} {{ agent_url }} {{ agent_sha256 }}
Each stands for one quoted string. For administrators: what is deployed is root on the fleet.")]
    Create(CreateArgs),
    /// List sites
    #[command(after_help = "Examples:
  millwright site list
  millwright site list --filter 'credentials_ref=lab-maas' -o wide

Filters: name, url, credentials_ref, created_at, updated_at.")]
    List(ListArgs),
    /// Show one site: its profiles, and how it was last seen
    #[command(after_help = "Examples:
  millwright site show lab
  millwright site show lab -o yaml > lab.yaml        to be edited, and given back: millwright site edit lab --file lab.yaml")]
    Show {
        /// The site's name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Put another description in the place of a site's
    #[command(after_help = "Examples:
  millwright site show lab -o yaml > lab.yaml
  millwright site edit lab --file lab.yaml           refused if somebody else has changed it since
  millwright site edit lab --maas-ca new-ca.pem
  millwright site edit lab --poll 5 --dry-run")]
    Edit(EditArgs),
    /// Remove a site; refused while nodes run on its machines
    #[command(after_help = "Examples:\n  millwright site remove lab\n  millwright site remove lab --dry-run")]
    Remove {
        /// The site's name
        #[arg(value_name = "NAME")]
        name: String,
        /// Look, print what would be sent, and remove nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Ask its MAAS whether all is there that onboarding will need
    #[command(after_help = "Examples:
  millwright site check lab
  millwright site check lab -o json | jq '.points[] | select(.verdict == \"failed\")'

Looks at the key, its rights, the clock, and for every profile at its image, subnets, pool and zone. Ends with 1 where
something has failed.")]
    Check {
        /// The site's name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// What was last seen of a site's machines, and which nodes run on them
    #[command(after_help = "Examples:
  millwright site machines lab
  millwright site machines lab --filter 'class=failed'
  millwright site machines lab --filter 'node_id=\"\" AND class=ready' -o wide
  millwright site machines lab 4y3h7n                one of them, with all that is known

Filters: system_id, status, status_name, class, power_state, hostname, owner, hardware_uuid, serial, pool, zone,
osystem, series, node_id, changed_at, absent_since.")]
    Machines {
        /// The site's name
        #[arg(value_name = "NAME")]
        name: String,
        /// One machine, by MAAS's id
        #[arg(value_name = "SYSTEM_ID", conflicts_with_all = ["filter", "limit"])]
        system_id: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
}

#[derive(Args)]
pub struct CreateArgs {
    /// The site's name
    #[arg(value_name = "NAME", required_unless_present = "file")]
    name: Option<String>,
    /// A whole description, instead of the other options; - for stdin
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["url", "credential", "maas_ca", "series", "architecture", "pool", "zone", "tag", "pxe_subnet", "poll", "erase"])]
    file: Option<PathBuf>,
    /// The MAAS, up to and with /MAAS
    #[arg(long, value_name = "URL", required_unless_present = "file")]
    url: Option<String>,
    /// The credential of kind maas that holds its API key
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    credential: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
    /// The series that is deployed, such as noble [default: MAAS's own]
    #[arg(long, value_name = "SERIES")]
    series: Option<String>,
    /// The machines' architecture [default: amd64/generic]
    #[arg(long, value_name = "ARCH/SUBARCH")]
    architecture: Option<String>,
    /// The resource pool that machines are put into
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// The zone that machines are put into
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// A tag that machines get; can be repeated
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// The subnet that machines boot in: a number, cidr:10.0.0.0/24 or name:NAME
    #[arg(long, value_name = "SUBNET")]
    pxe_subnet: Option<String>,
    /// Print what would be sent, and create nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
pub struct EditArgs {
    /// The site's name
    #[arg(value_name = "NAME")]
    name: String,
    /// A whole description, instead of the other options; - for stdin
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["url", "credential", "maas_ca", "poll", "erase"])]
    file: Option<PathBuf>,
    /// The MAAS, up to and with /MAAS
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The credential of kind maas that holds its API key
    #[arg(long, value_name = "NAME")]
    credential: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
    /// Print what would be sent, and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
struct CommonArgs {
    /// Certificates (PEM) that sign the MAAS's own [default: what the system trusts]
    #[arg(long, value_name = "PATH")]
    maas_ca: Option<PathBuf>,
    /// Seconds between two looks at what moves [default: 10]
    #[arg(long, value_name = "SECONDS")]
    poll: Option<u32>,
    /// What is done to the disks of machines that are given back: none, quick, secure, full [default: quick]
    #[arg(long, value_name = "HOW")]
    erase: Option<String>,
}

impl CommonArgs {
    fn apply(&self, site: &mut Site) -> Result<(), CliError> {
        if let Some(path) = &self.maas_ca {
            site.ca_pem = text_of(path)?;
        }
        let policy = site.policy.get_or_insert_with(SitePolicy::default);
        policy.poll_seconds = self.poll.or(policy.poll_seconds);
        if let Some(erase) = &self.erase {
            policy.erase.clone_from(erase);
        }
        Ok(())
    }
}

/// Far above what any bundle of certificates has.
const CA_MAX_BYTES: u64 = 1024 * 1024;

fn text_of(path: &Path) -> Result<String, CliError> {
    use std::io::Read as _;
    let wrong = |e: std::io::Error| CliError::usage(format!("{}: {e}", path.display()));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(wrong)?;
    file.take(CA_MAX_BYTES).read_to_string(&mut text).map_err(wrong)?;
    Ok(text)
}

impl CreateArgs {
    fn site(&self) -> Result<Site, CliError> {
        if let Some(file) = &self.file {
            let site: Site = read_as(file)?;
            return match &self.name {
                Some(name) if *name != site.name && !site.name.is_empty() => {
                    Err(CliError::usage(format!("the file is about {}, not {name}", site.name)))
                }
                Some(name) => Ok(Site { name: name.clone(), version: 0, ..site }),
                None => Ok(Site { version: 0, ..site }),
            };
        }
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let profile = SiteProfile {
            name: "default".to_owned(),
            architecture: text(&self.architecture),
            series: text(&self.series),
            pool: text(&self.pool),
            zone: text(&self.zone),
            tags: self.tag.clone(),
            pxe_subnet: text(&self.pxe_subnet),
            ..SiteProfile::default()
        };
        let mut site = Site {
            name: text(&self.name),
            url: text(&self.url),
            credentials_ref: text(&self.credential),
            profiles: vec![profile],
            ..Site::default()
        };
        self.common.apply(&mut site)?;
        Ok(site)
    }
}

impl EditArgs {
    async fn site(&self, clients: &Clients) -> Result<Site, CliError> {
        if let Some(file) = &self.file {
            let site: Site = read_as(file)?;
            if !site.name.is_empty() && site.name != self.name {
                return Err(CliError::usage(format!("the file is about {}, not {}", site.name, self.name)));
            }
            return Ok(Site { name: self.name.clone(), ..site });
        }
        let mut site = get(clients, &self.name).await?;
        if let Some(url) = &self.url {
            site.url.clone_from(url);
        }
        if let Some(credential) = &self.credential {
            site.credentials_ref.clone_from(credential);
        }
        self.common.apply(&mut site)?;
        Ok(site)
    }
}

/// What the server itself says of a site is not sent back to it.
fn sent(site: Site) -> Site {
    Site { created_at: None, updated_at: None, sight: None, ..site }
}

async fn get(clients: &Clients, name: &str) -> Result<Site, CliError> {
    call(clients.sites.clone().get_site(GetSiteRequest { name: name.to_owned() })).await
}

pub async fn execute(command: SiteCommand, options: &ClientOptions) -> Result<(), CliError> {
    match command {
        SiteCommand::Create(args) => {
            let site = sent(args.site()?);
            let request = CreateSiteRequest { site: Some(site.clone()) };
            if args.dry_run {
                return DryRun::new(CREATE, &site.name, &request)?.print(options.output);
            }
            let mut clients = connect(options).await?;
            let made = call(clients.sites.create_site(request)).await?;
            output::one(options.output, &made, &made.name, |s| {
                vec![clean(&format!("{} created; see whether all is there: millwright site check {}", s.name, s.name))]
            })
        }
        SiteCommand::List(args) => {
            let sites = connect(options).await?.sites;
            output::list(options.output, &args.filter, args.limit, async |page_size, page_token| {
                let request = ListSitesRequest { filter: args.filter.clone(), page_size, page_token };
                let page = call(sites.clone().list_sites(request)).await?;
                Ok((page.sites, page.next_page_token))
            })
            .await
        }
        SiteCommand::Show { name } => {
            let found = get(&connect(options).await?, &name).await?;
            output::one(options.output, &found, &found.name, |site| site_look::sheet(site, Screen::stdout()))
        }
        SiteCommand::Edit(args) => {
            let mut clients = connect(options).await?;
            let site = sent(args.site(&clients).await?);
            let request = UpdateSiteRequest { site: Some(site) };
            if args.dry_run {
                return DryRun::new(UPDATE, &args.name, &request)?.print(options.output);
            }
            let changed = call(clients.sites.update_site(request)).await?;
            output::one(options.output, &changed, &changed.name, |s| {
                vec![clean(&format!("{} is as described, version {}", s.name, s.version))]
            })
        }
        SiteCommand::Remove { name, dry_run } => {
            let mut clients = connect(options).await?;
            let request = RemoveSiteRequest { name };
            if dry_run {
                let there = get(&clients, &request.name).await?;
                let mut trial = DryRun::new(REMOVE, &request.name, &request)?;
                match there.sight.map_or(0, |sight| sight.nodes) {
                    0 => trial.fine("no node runs on its machines".to_owned()),
                    nodes => trial.obstacle(
                        CliError::refused(format!("{nodes} nodes run on its machines")).because("SITE_IN_USE"),
                    ),
                }
                return trial.print(options.output);
            }
            let gone = call(clients.sites.remove_site(request)).await?;
            output::one(options.output, &gone, &gone.name, |s| vec![clean(&format!("{} removed", s.name))])
        }
        SiteCommand::Check { name } => {
            let mut clients = connect(options).await?;
            let found = call(clients.sites.check_site(CheckSiteRequest { name })).await?;
            output::one(options.output, &found, &found.name, |check| check_lines(check, Screen::stdout()))?;
            match found.points.iter().filter(|point| point.verdict == "failed").count() {
                0 => Ok(()),
                failed => Err(CliError::failed(format!("{failed} of {} points have failed", found.points.len()))),
            }
        }
        SiteCommand::Machines { name, system_id: Some(system_id), .. } => {
            let mut clients = connect(options).await?;
            let found = call(clients.sites.get_site_machine(GetSiteMachineRequest { site: name, system_id })).await?;
            output::one(options.output, &found, &found.system_id, |m| machine_sheet(m, Screen::stdout()))
        }
        SiteCommand::Machines { name, system_id: None, list } => {
            let sites = connect(options).await?.sites;
            output::list(options.output, &list.filter, list.limit, async |page_size, page_token| {
                let (site, filter) = (name.clone(), list.filter.clone());
                let request = ListSiteMachinesRequest { site, filter, page_size, page_token };
                let page = call(sites.clone().list_site_machines(request)).await?;
                Ok((page.machines, page.next_page_token))
            })
            .await
        }
    }
}
