//! Agents: thousands of them on one server over loopback, each with its own key, certificate and stream. What they cost
//! while nothing happens, how soon a task reaches one, how they come back after the server was killed; and what one real
//! agent costs its machine.

use crate::Outcome;
use crate::client::Clients;
use crate::options::Options;
use crate::process::{Cpu, Launch, Server, resident};
use crate::report::{Figure, Goal, Report, middle, plain};
use domain::Timestamp;
use futures::stream::{FuturesUnordered, StreamExt as _};
use proto::agent::v1 as wire;
use proto::agent::v1::to_agent::Message as Word;
use proto::millwright::v1 as mw;
use proto::millwright::v1::node_service_client::NodeServiceClient;
use proto::millwright::v1::task_service_client::TaskServiceClient;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use store::{Ambient as _, SystemAmbient};
use testkit::agent_client::{Agent, Dialer, WINDOW, facts_of};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const SECTION: &str = "agents";
const MIB: f64 = 1024.0 * 1024.0;
/// As agents are told to by default.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Enrolments and connections that are under way at a time, as long as all of them have to come at once.
const AT_A_TIME: usize = 64;
/// The first try of an agent that has lost its server, spread over so long.
const COME_BACK_OVER: Duration = Duration::from_secs(20);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
const TASKS: usize = 200;
/// What one real agent is watched for.
const IDLE: Duration = Duration::from_secs(45);

fn figure(what: String, unit: &'static str, measured: Vec<f64>, limit: f64, goal: Goal) -> Figure {
    let against = "the goal itself".to_owned();
    Figure { section: SECTION, database: "SQLite", what, unit, measured, limit: vec![limit], against, goal }
}

fn clock() -> Timestamp {
    static CLOCK: LazyLock<SystemAmbient> = LazyLock::new(SystemAmbient::new);
    CLOCK.now()
}

/// What happens on the streams.
enum Happened {
    /// A heartbeat was answered so long after it was said.
    Beat(Duration),
    Task(String, Instant),
}

/// All agents share one view of the time that is measured.
struct Field {
    dialer: Dialer,
    connected: AtomicUsize,
    attempts: AtomicUsize,
    tell: mpsc::UnboundedSender<Happened>,
    stop: CancellationToken,
}

pub async fn run(options: &Options, report: &mut Report) -> Outcome<()> {
    raise_open_files()?;
    let folder = tempfile::tempdir()?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let launch = Launch {
        data: folder.path().join("data"),
        database: None,
        simulated: false,
        settings: vec![
            ("agents.listen".to_owned(), port.to_string()),
            ("limits.calls_per_second".to_owned(), "100000".to_owned()),
        ],
    };
    let server = launch.start()?;
    let clients = Clients::connect(&server).await?;
    println!("  {} nodes", options.agents);
    let bundles = create(&clients, options.agents).await?;
    let authority = authority_of(bundles.first().ok_or("no agents were asked for")?)?;
    let (tell, mut heard) = mpsc::unbounded_channel();
    let dialer = Dialer { address: port, authority, clock: Arc::new(clock), window: WINDOW };
    let field = Arc::new(Field {
        dialer,
        connected: AtomicUsize::new(0),
        attempts: AtomicUsize::new(0),
        tell,
        stop: CancellationToken::new(),
    });
    println!("  enrolling");
    let begun = Instant::now();
    let agents = enrol(&field, bundles).await?;
    let rate = agents.len() as f64 / begun.elapsed().as_secs_f64();
    report.note(format!("{} agents enrolled at {} a second, key and certificate included", agents.len(), plain(rate)));
    let ids: Vec<String> = agents.iter().map(|agent| agent.node_id.clone()).collect();
    let mut running = Vec::new();
    for (number, agent) in agents.into_iter().enumerate() {
        running.push(tokio::spawn(live(field.clone(), agent, number, options.agents)));
    }
    all_connected(&field, options.agents).await?;
    quiet(&server, &mut heard, options, report).await?;
    dispatch(&clients, &mut heard, &ids, report).await?;
    come_back(server, &launch, &field, &mut heard, options, report).await?;
    field.stop.cancel();
    for agent in running {
        drop(agent.await);
    }
    one_real(&launch, report).await
}

/// Every stream is a file, here and there.
fn raise_open_files() -> Outcome<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })?)
}

async fn create(clients: &Clients, count: usize) -> Outcome<Vec<String>> {
    let mut bundles = Vec::new();
    let mut made = FuturesUnordered::new();
    let mut next = 0;
    while bundles.len() < count {
        while next < count && made.len() < AT_A_TIME {
            let mut nodes = NodeServiceClient::new(clients.door(next));
            let asked = mw::CreateNodeRequest { name: format!("gpu-{next:05}"), ..Default::default() };
            made.push(async move { nodes.create_node(asked).await });
            next += 1;
        }
        if let Some(issued) = made.next().await {
            bundles.push(issued?.into_inner().secret_bundle);
        }
    }
    Ok(bundles)
}

fn field_of(bundle: &str, name: &str) -> Outcome<String> {
    let bundle: serde_json::Value = serde_json::from_str(bundle)?;
    Ok(bundle.get(name).and_then(serde_json::Value::as_str).ok_or("not a bundle")?.to_owned())
}

fn authority_of(bundle: &str) -> Outcome<Vec<u8>> {
    testkit::agent_client::der_of(&field_of(bundle, "authority_pem")?).ok_or_else(|| "no authority".into())
}

async fn enrol(field: &Arc<Field>, bundles: Vec<String>) -> Outcome<Vec<Agent>> {
    let mut agents = Vec::new();
    let mut left = bundles.into_iter().enumerate();
    let mut under_way = FuturesUnordered::new();
    loop {
        while under_way.len() < AT_A_TIME
            && let Some((number, bundle)) = left.next()
        {
            let (token, field) = (field_of(&bundle, "token")?, field.clone());
            under_way.push(async move { Agent::enrol_as(&field.dialer, &token, facts_of(number)).await });
        }
        match under_way.next().await {
            Some(agent) => agents.push(agent?),
            None => return Ok(agents),
        }
    }
}

/// A number between 0 and 1 that differs from agent to agent and from try to try.
fn chance(number: usize, attempt: usize) -> f64 {
    let mixed = domain::stage::mix((number as u64) << 20 ^ attempt as u64 ^ clock().micros().unsigned_abs());
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

/// One agent, until it is told to stop: connects, beats, and comes back as a real one does.
async fn live(field: Arc<Field>, mut agent: Agent, number: usize, of: usize) {
    // the first time in turn, as a fleet that is switched on rack by rack
    tokio::time::sleep(HEARTBEAT.mul_f64(number as f64 / of as f64)).await;
    let mut attempt = 0;
    loop {
        field.attempts.fetch_add(1, Ordering::Relaxed);
        if let Ok(stream) = agent.connect(&field.dialer).await {
            attempt = 0;
            field.connected.fetch_add(1, Ordering::Relaxed);
            beat(&field, stream, number).await;
            field.connected.fetch_sub(1, Ordering::Relaxed);
        }
        if field.stop.is_cancelled() {
            return;
        }
        attempt += 1;
        let ceiling = if attempt == 1 { COME_BACK_OVER } else { BACKOFF_MAX };
        tokio::time::sleep(ceiling.mul_f64(chance(number, attempt))).await;
    }
}

async fn beat(field: &Field, mut stream: testkit::agent_client::Conversation, number: usize) {
    let mut next = Instant::now() + HEARTBEAT.mul_f64(chance(number, 0));
    let (mut echo, mut said) = (0, Instant::now());
    loop {
        tokio::select! {
            () = field.stop.cancelled() => return,
            () = tokio::time::sleep_until(next) => {
                next += HEARTBEAT;
                echo += 1;
                said = Instant::now();
                stream.beat_asking(clock(), echo).await;
            }
            word = stream.word() => match word {
                Ok(Some(Word::HeartbeatSeen(seen))) if seen.echo == echo => {
                    drop(field.tell.send(Happened::Beat(said.elapsed())));
                }
                Ok(Some(Word::Task(task))) => {
                    drop(field.tell.send(Happened::Task(task.task_id.clone(), Instant::now())));
                    stream.say(wire::from_agent::Message::Result(refused(&task))).await;
                }
                Ok(Some(Word::GoAway(_)) | None) | Err(_) => return,
                Ok(Some(_)) => {}
            }
        }
    }
}

/// What ends a task without anything done.
fn refused(task: &wire::Task) -> wire::TaskResult {
    wire::TaskResult { task_id: task.task_id.clone(), fence: task.fence, ..Default::default() }
}

async fn all_connected(field: &Field, count: usize) -> Outcome<()> {
    let begun = Instant::now();
    while field.connected.load(Ordering::Relaxed) < count {
        if begun.elapsed() > Duration::from_secs(300) {
            let connected = field.connected.load(Ordering::Relaxed);
            return Err(format!("only {connected} of {count} agents are connected after five minutes").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Heartbeats, and nothing else.
async fn quiet(
    server: &Server,
    heard: &mut mpsc::UnboundedReceiver<Happened>,
    options: &Options,
    report: &mut Report,
) -> Outcome<()> {
    // their onboarding is over before
    tokio::time::sleep(HEARTBEAT * 4).await;
    while heard.try_recv().is_ok() {}
    let (mut shares, mut memory) = (Vec::new(), 0.0f64);
    for _ in 0..options.slices() {
        let (before, begun) = (Cpu::of(server.pid())?, Instant::now());
        tokio::time::sleep(HEARTBEAT).await;
        shares.push(Cpu::of(server.pid())?.since(&before).as_secs_f64() / begun.elapsed().as_secs_f64());
        memory = memory.max(server.resident()? / MIB);
    }
    let mut took = Vec::new();
    while let Ok(happened) = heard.try_recv() {
        if let Happened::Beat(after) = happened {
            took.push(after.as_secs_f64() * 1000.0);
        }
    }
    let n = options.agents;
    report.add(figure(format!("CPU, {n} agents beating every 15 s"), "cores", shares, 0.5, Goal::AtMost(1.0)));
    report.add(figure(format!("memory with {n} agents"), "MiB", vec![memory], 500.0, Goal::AtMost(1.0)));
    let worst = percentile(&mut took, 0.99);
    report.add(figure(
        format!("heartbeat to its answer, p99 of {}", took.len()),
        "ms",
        vec![worst],
        100.0,
        Goal::AtMost(1.0),
    ));
    Ok(())
}

fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let at = ((samples.len() as f64 * share) as usize).min(samples.len().saturating_sub(1));
    samples.get(at).copied().unwrap_or(f64::NAN)
}

/// From the call that orders a task until it is on its agent's stream.
async fn dispatch(
    clients: &Clients,
    heard: &mut mpsc::UnboundedReceiver<Happened>,
    ids: &[String],
    report: &mut Report,
) -> Outcome<()> {
    let mut took = Vec::new();
    let mut tasks = TaskServiceClient::new(clients.door(0));
    for id in ids.iter().step_by((ids.len() / TASKS).max(1)).take(TASKS) {
        let asked =
            mw::OrderTaskRequest { node_id: id.clone(), kind: "node.validate_clean".to_owned(), ..Default::default() };
        let begun = Instant::now();
        let ordered = tasks.order_task(asked).await?.into_inner();
        let arrived = loop {
            match tokio::time::timeout(Duration::from_secs(30), heard.recv()).await? {
                Some(Happened::Task(task, at)) if task == ordered.id => break at,
                Some(_) => {}
                None => return Err("nobody listens any more".into()),
            }
        };
        took.push(arrived.duration_since(begun).as_secs_f64() * 1000.0);
    }
    let half = middle(&took);
    let worst = percentile(&mut took, 0.99);
    report.add(figure(
        format!("task from its order to its agent, p50 of {}", took.len()),
        "ms",
        vec![half],
        20.0,
        Goal::AtMost(1.0),
    ));
    report.note(format!("the same, p99: {} ms", plain(worst)));
    Ok(())
}

/// The server is killed and started again; agents come back by themselves.
async fn come_back(
    server: Server,
    launch: &Launch,
    field: &Arc<Field>,
    heard: &mut mpsc::UnboundedReceiver<Happened>,
    options: &Options,
    report: &mut Report,
) -> Outcome<()> {
    server.kill()?;
    while field.connected.load(Ordering::Relaxed) > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    field.attempts.store(0, Ordering::Relaxed);
    let server = launch.start()?;
    let begun = Instant::now();
    let (mut busiest, mut last) = (0, 0);
    while field.connected.load(Ordering::Relaxed) < options.agents {
        if begun.elapsed() > Duration::from_secs(300) {
            return Err("not all agents came back within five minutes".into());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = field.attempts.load(Ordering::Relaxed);
        busiest = busiest.max(now - last);
        last = now;
        while heard.try_recv().is_ok() {}
    }
    let took = begun.elapsed().as_secs_f64();
    let tries = last as f64 / options.agents as f64;
    report.add(figure(
        format!("{} agents back after a kill", options.agents),
        "s",
        vec![took],
        60.0,
        Goal::AtMost(1.0),
    ));
    report.note(format!("they tried {} times each, at most {busiest} in one second", plain(tries)));
    server.stop()
}

/// The release binary of the agent that lies beside this program.
fn agent_program() -> Outcome<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("millwright-agent");
    if !path.is_file() {
        return Err(
            format!("{} is missing; build it: cargo build --release -p millwright-agent", path.display()).into()
        );
    }
    Ok(path)
}

/// One real agent, enrolled and idle.
async fn one_real(launch: &Launch, report: &mut Report) -> Outcome<()> {
    let program = agent_program()?;
    let server = launch.start()?;
    let clients = Clients::connect(&server).await?;
    let mut nodes = NodeServiceClient::new(clients.door(0));
    let asked = mw::CreateNodeRequest { name: "a-real-one".to_owned(), ..Default::default() };
    let bundle = nodes.create_node(asked).await?.into_inner().secret_bundle;
    let state = tempfile::tempdir()?;
    std::fs::write(state.path().join("bundle.json"), bundle)?;
    let log = std::fs::File::create(state.path().join("log"))?;
    let mut child = Command::new(&program)
        .args(["run", "--state"])
        .arg(state.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    let measured = watch(&mut nodes, child.id()).await;
    drop(child.kill());
    drop(child.wait());
    let (memory, share) = measured?;
    report.add(figure("one agent, idle: memory".to_owned(), "MiB", vec![memory], 15.0, Goal::AtMost(1.0)));
    report.add(figure("one agent, idle: CPU".to_owned(), "% of a core", vec![share * 100.0], 0.1, Goal::AtMost(1.0)));
    let bytes = std::fs::metadata(program)?.len() as f64 / MIB;
    report.add(figure("the agent's release binary".to_owned(), "MiB", vec![bytes], 12.0, Goal::AtMost(1.0)));
    server.stop()
}

async fn watch(nodes: &mut NodeServiceClient<testkit::server::Door>, pid: u32) -> Outcome<(f64, f64)> {
    let begun = Instant::now();
    loop {
        let node = nodes.get_node(mw::GetNodeRequest { id: "a-real-one".to_owned() }).await?.into_inner();
        if node.agent.is_some_and(|agent| agent.last_heartbeat.is_some()) {
            break;
        }
        if begun.elapsed() > Duration::from_secs(60) {
            return Err("the real agent was not heard of within a minute".into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let before = Cpu::of(pid)?;
    let begun = Instant::now();
    tokio::time::sleep(IDLE).await;
    let share = Cpu::of(pid)?.since(&before).as_secs_f64() / begun.elapsed().as_secs_f64();
    Ok((resident(pid)? / MIB, share))
}
