//! The two that serve images, each in processes of its own: ours, which is this program once more with the product's
//! runtime, port and router; and nginx from the distribution, with a configuration of our own.

use crate::Outcome;
use crate::process::{Cpu, resident};
use boot::images::{Images, NamesInMemory, Options, Store};
use boot::port::{PortOptions, serve};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const NGINX: &str = "/usr/sbin/nginx";
const INSTALL: &str = "apt-get install -y --no-install-recommends nginx-light";
const PATIENCE: Duration = Duration::from_secs(30);
const SAYS: &str = "listens on ";

pub struct ImageServer {
    pub name: &'static str,
    pub address: String,
    /// nginx: the one that starts the others.
    child: Child,
}

impl ImageServer {
    /// All processes of it.
    fn pids(&self) -> Outcome<Vec<u32>> {
        let first = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children"))?;
        let mut pids = vec![first];
        for pid in children.split_whitespace() {
            pids.push(pid.parse()?);
        }
        Ok(pids)
    }

    pub fn cpu(&self) -> Outcome<Cpus> {
        self.pids()?.into_iter().map(Cpu::of).collect::<Outcome<_>>().map(Cpus)
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> Outcome<f64> {
        self.pids()?.into_iter().map(resident).sum()
    }
}

impl Drop for ImageServer {
    fn drop(&mut self) {
        // asked to, so that nginx ends its workers; an error here means that it is over already
        drop(Command::new("kill").arg(self.child.id().to_string()).status());
        drop(self.child.wait());
    }
}

/// Processor time of some processes so far.
pub struct Cpus(Vec<Cpu>);

impl Cpus {
    pub fn since(&self, before: &Self) -> Duration {
        self.0.iter().zip(&before.0).map(|(now, before)| now.since(before)).sum()
    }
}

/// This program again, as a server of the folder's `images`.
pub fn ours(folder: &Path) -> Outcome<ImageServer> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--serve-images").arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut line = String::new();
    if let Some(said) = child.stdout.take() {
        BufReader::new(said).read_line(&mut line)?;
    }
    let address = line.trim().strip_prefix(SAYS).unwrap_or_default().to_owned();
    let server = ImageServer { name: "millwright", address, child };
    if server.address.is_empty() { Err("the image server did not start".into()) } else { Ok(server) }
}

/// What the program does when it is started by [`ours`]: until its input ends, it serves.
pub fn be_one(folder: &Path) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = Store::open(&folder.join("images"), u64::MAX)?;
        let images = Images::new(Arc::new(store), Arc::new(NamesInMemory::default()), Options::default());
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{SAYS}{}", listener.local_addr()?);
        let stop = CancellationToken::new();
        let told = stop.clone();
        std::thread::spawn(move || {
            drop(std::io::stdin().read_to_end(&mut Vec::new()));
            told.cancel();
        });
        serve(listener, Arc::new(images).router(), PortOptions::default(), stop).await;
        Ok(())
    })
}

pub fn nginx(folder: &Path) -> Outcome<ImageServer> {
    if !Path::new(NGINX).is_file() {
        return Err(format!("nginx, which images are measured against, is missing; install it: {INSTALL}").into());
    }
    // free a moment ago; somebody who takes it just now shows as an nginx that does not start
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let at = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|of| format!("{of}_temp_path {at}/{of};"));
    let config = format!(
        "daemon off; user root; worker_processes auto; pid {at}/nginx.pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; sendfile off; keepalive_requests 1000000; default_type application/octet-stream;\n\
         {}\n\
         server {{ listen 127.0.0.1:{port} backlog=1024; root {at}; }} }}\n",
        temporary.join("\n")
    );
    let (file, log) = (folder.join("nginx.conf"), folder.join("nginx.log"));
    std::fs::write(&file, config)?;
    let mut command = Command::new(NGINX);
    command.arg("-e").arg(&log).arg("-p").arg(folder).arg("-c").arg(&file);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut server = ImageServer { name: "nginx", address: format!("127.0.0.1:{port}"), child };
    let begun = Instant::now();
    while std::net::TcpStream::connect(&server.address).is_err() {
        if server.child.try_wait()?.is_some() || begun.elapsed() > PATIENCE {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("nginx did not start: {said}").into());
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(server)
}
