//! Image bytes: how many each second reach 64 readers of one large file, beside nginx serving the very same file in
//! turns, without `sendfile`, as we read and write, too; and how much memory that takes as readers grow in number. The
//! readers let the kernel drop what has come: what is measured is the server, and there are two processors for all.
//! That the bytes are right is looked at first.

use crate::Outcome;
use crate::image_servers::{ImageServer, nginx, ours};
use crate::options::Options;
use crate::reads::Scattered;
use crate::report::{Figure, Goal, Report, Series};
use boot::images::Store;
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

const SECTION: &str = "images";
const MIB: f64 = 1024.0 * 1024.0;
const IMAGE: usize = 256 << 20;
const READERS: usize = 64;
const READERS_FOR_MEMORY: [usize; 4] = [1, 16, 64, 256];
/// What a reader takes at a time.
const PIECE: usize = 1 << 20;
/// Until all are under way.
const WARM: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub async fn run(options: &Options, report: &mut Report) -> Outcome<()> {
    let folder = tempfile::Builder::new().prefix("millwright-bench-images-").tempdir()?;
    let content = content();
    let (digest, _) = Store::open(&folder.path().join("images"), u64::MAX)?.add(content.as_slice(), None)?;
    let path = format!("/images/sha256/{digest}");
    let (ours, nginx) = (ours(folder.path())?, nginx(folder.path())?);
    for server in [&ours, &nginx] {
        check(server, &path, &content).await?;
    }
    drop(content);
    speed(&ours, &nginx, &path, options, report).await?;
    memory(folder.path(), &path, options, report).await
}

/// Bytes that nothing can shorten.
fn content() -> Vec<u8> {
    let mut next = Scattered::new(1 << 31, 0);
    let mut content = Vec::with_capacity(IMAGE);
    while content.len() < IMAGE {
        content.extend_from_slice(&(next.step() as u32).to_le_bytes());
    }
    content
}

async fn speed(
    ours: &ImageServer,
    nginx: &ImageServer,
    path: &str,
    options: &Options,
    report: &mut Report,
) -> Outcome<()> {
    let (mut measured, mut limit) = (Vec::new(), Vec::new());
    for _ in 0..options.slices() {
        measured.push(read(ours, path, READERS, options.slice()).await?);
        limit.push(read(nginx, path, READERS, options.slice()).await?);
    }
    let figure = |what: String, unit, of: fn(&Read) -> f64, goal| Figure {
        section: SECTION,
        database: "",
        what,
        unit,
        measured: measured.iter().map(of).collect(),
        limit: limit.iter().map(of).collect(),
        against: "nginx, sendfile off, the same file in turns".to_owned(),
        goal,
    };
    let what = format!("image bytes per second, {READERS} readers of one file");
    report.add(figure(what, "MiB/s", |r| r.bytes / MIB / r.seconds, Goal::AtLeast(0.8)));
    let what = format!("server CPU for a GiB, {READERS} readers");
    report.add(figure(what, "ms", |r| r.cpu * 1000.0 / (r.bytes / MIB / 1024.0), Goal::None));
    Ok(())
}

/// In processes that have served nobody before.
async fn memory(folder: &Path, path: &str, options: &Options, report: &mut Report) -> Outcome<()> {
    let mut lines = Vec::new();
    for (name, server) in [("millwright", ours(folder)?), ("nginx, all its processes", nginx(folder)?)] {
        let mut points = Vec::new();
        for readers in READERS_FOR_MEMORY {
            points.push((readers as f64, read(&server, path, readers, options.slice()).await?.memory / MIB));
        }
        lines.push((name.to_owned(), points));
    }
    let at = |line: usize, point: usize| lines[line].1[point].1;
    let last = READERS_FOR_MEMORY.len() - 1;
    let figure = |what: String, measured, limit, against: &str, goal| Figure {
        section: SECTION,
        database: "",
        what,
        unit: "MiB",
        measured: vec![measured],
        limit: vec![limit],
        against: against.to_owned(),
        goal,
    };
    let [_, _, some, many] = READERS_FOR_MEMORY;
    let what = format!("memory with {many} readers at full speed");
    let against = format!("with {some} readers");
    report.add(figure(what.clone(), at(0, last), at(0, last - 1), &against, Goal::AtMost(1.5)));
    report.add(figure(what, at(0, last), IMAGE as f64 / MIB, "the image itself", Goal::AtMost(0.1)));
    report.series.push(Series {
        section: SECTION,
        title: format!("Resident memory while one image of {} MiB is read", IMAGE >> 20),
        x: "readers",
        y: "MiB",
        lines,
    });
    Ok(())
}

/// What came of some seconds of reading.
struct Read {
    bytes: f64,
    seconds: f64,
    /// Of the server, in seconds.
    cpu: f64,
    /// Of the server, at most.
    memory: f64,
}

async fn read(server: &ImageServer, path: &str, readers: usize, span: Duration) -> Outcome<Read> {
    let count = Rc::new(Cell::new(0_u64));
    let local = LocalSet::new();
    let measured = local.run_until(async {
        let mut tasks: JoinSet<Outcome<()>> = JoinSet::new();
        for _ in 0..readers {
            let (address, path, count) = (server.address.clone(), path.to_owned(), count.clone());
            tasks.spawn_local(async move { read_for_ever(&address, &path, &count).await });
        }
        tokio::time::sleep(WARM).await;
        let (begun, before, from) = (Instant::now(), server.cpu()?, count.get());
        let mut memory = 0.0_f64;
        while begun.elapsed() < span {
            tokio::time::sleep(LOOK_EVERY.min(span)).await;
            memory = memory.max(server.resident()?);
        }
        let (bytes, seconds) = ((count.get() - from) as f64, begun.elapsed().as_secs_f64());
        let cpu = server.cpu()?.since(&before).as_secs_f64();
        // a reader ends only when something is wrong
        if let Some(ended) = tasks.try_join_next() {
            ended??;
        }
        Ok(Read { bytes, seconds, cpu, memory })
    });
    measured.await
}

async fn ask(socket: &mut TcpStream, path: &str) -> Outcome<()> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = format!("content-length: {IMAGE}\r\n");
    if head.starts_with("http/1.1 200") && head.contains(&length) { Ok(()) } else { Err(head.into()) }
}

/// The whole image, again and again.
async fn read_for_ever(address: &str, path: &str, count: &Cell<u64>) -> Outcome<()> {
    let mut socket = TcpStream::connect(address).await?;
    // never written to: the kernel drops the bytes instead
    let mut nowhere = vec![0; PIECE];
    loop {
        ask(&mut socket, path).await?;
        let mut left = IMAGE;
        while left > 0 {
            let wanted = left.min(PIECE);
            let dropped = socket.async_io(Interest::READABLE, || {
                let flags = rustix::net::RecvFlags::TRUNC | rustix::net::RecvFlags::DONTWAIT;
                Ok(rustix::net::recv(&socket, &mut nowhere[..wanted], flags)?.1)
            });
            let dropped = dropped.await?;
            if dropped == 0 {
                return Err("the server has closed the connection".into());
            }
            left -= dropped;
            count.set(count.get() + dropped as u64);
        }
    }
}

/// Every byte, by one reader.
async fn check(server: &ImageServer, path: &str, content: &[u8]) -> Outcome<()> {
    let mut socket = TcpStream::connect(&server.address).await?;
    ask(&mut socket, path).await?;
    let mut piece = vec![0; PIECE];
    for expected in content.chunks(PIECE) {
        socket.read_exact(&mut piece[..expected.len()]).await?;
        if piece[..expected.len()] != *expected {
            return Err(format!("{} served other bytes than the image's", server.name).into());
        }
    }
    Ok(())
}
