//! Ten thousand runs under way at once, all waiting for their machines to be installed, on a branch of the
//! machines that the other sections use.

use crate::Outcome;
use crate::client::{Clients, work_off};
use crate::ground::Ground;
use crate::process::Server;
use crate::runs::start_all;
use proto::baremetal::v1 as pb;
use std::time::Duration;
use tokio::time::Instant;

const CALLERS: usize = 256;
/// What a run writes before it waits, about; to guess how long the start of all will take.
const WRITES_EACH: f64 = 12.0;
/// After the last has begun to wait: by then each is looked at every fifteen seconds or less often.
pub const SETTLED: Duration = Duration::from_secs(60);
/// Time for measuring, and for the server to be down, before the first installation ends.
const REST: Duration = Duration::from_secs(75);
const WITHIN: Duration = Duration::from_secs(900);

pub struct Flight {
    // before its folder goes
    pub server: Server,
    pub ground: Ground,
    pub runs: usize,
    /// The first installation ends no sooner.
    pub until: Instant,
}

impl Flight {
    pub async fn start(ground: &Ground, runs: usize) -> Outcome<Self> {
        let ground = ground.branch("flight")?;
        if runs > ground.machines {
            return Err("not enough machines for so many runs; use more --machines".into());
        }
        let server = ground.start().await?;
        let clients = Clients::connect(&server).await?;
        let guess = slow_down(&clients, 0..runs / 10, 3_600_000).await? * 10.0 * WRITES_EACH;
        let install = Duration::from_secs_f64(guess.clamp(20.0, 600.0)) + SETTLED + REST;
        let ms = u64::try_from(install.as_millis())?;
        slow_down(&clients, 0..runs, ms).await?;
        let begun = Instant::now();
        start_all(&clients, CALLERS, 0..runs, "flight").await?;
        println!("    {runs} runs started in {:.1} s", begun.elapsed().as_secs_f64());
        while started(&ground)? < runs {
            if begun.elapsed() > WITHIN {
                return Err(format!("only {} of {runs} installations began", started(&ground)?).into());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        println!(
            "    all of them wait for their installation after {:.1} s; one takes {:.0} s",
            begun.elapsed().as_secs_f64(),
            install.as_secs_f64()
        );
        Ok(Self { ground, server, runs, until: begun + install })
    }

    /// Runs that have not ended.
    pub async fn open(&self) -> Outcome<usize> {
        let open = "SELECT COUNT(*) FROM runs WHERE request_id LIKE 'flight-%' AND phase IN ('PENDING', 'RUNNING')";
        Ok(usize::try_from(self.ground.number(open, &[]).await?)?)
    }
}

/// Has the machines take their time for an installation; answers how long it took to say so, in seconds.
async fn slow_down(clients: &Clients, machines: std::ops::Range<usize>, ms: u64) -> Outcome<f64> {
    let first = machines.start;
    let told = work_off(CALLERS, machines.len(), |caller| {
        let client = clients.machines(caller);
        move |n| {
            let mut client = client.clone();
            let mut machine = crate::ground::machine(first + n);
            machine.labels.insert("sim.fault.repave".to_owned(), format!("slow:{ms}"));
            let request = pb::UpdateMachineRequest { machine: Some(machine), update_mask: None };
            async move { client.update_machine(request).await.map(drop) }
        }
    });
    Ok(told.await?.took.as_secs_f64())
}

/// Installations that have begun in this flight: the journal's word, not the server's. Every earlier run of the
/// machines that were branched off has begun one, too.
fn started(ground: &Ground) -> Outcome<usize> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let db = rusqlite::Connection::open_with_flags(ground.database_file(), flags)?;
    let earlier = "SELECT COUNT(*) FROM runs WHERE request_id NOT LIKE 'flight-%'";
    let earlier: i64 = db.query_row(earlier, [], |row| row.get(0))?;
    let journal = std::fs::read_to_string(ground.world())?;
    let begun = journal.lines().filter(|line| line.contains("\"repave_started\"")).count();
    Ok(begun.saturating_sub(usize::try_from(earlier)?))
}
