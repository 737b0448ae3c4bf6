//! Following one boot node: a block with a progress bar that is redrawn in place on a terminal, a line for each change
//! elsewhere.

use super::ClientOptions;
use super::boot_look::{bar, last_lines, open_order};
use super::connect::{Clients, Door, connect};
use super::exit::CliError;
use super::output::{Format, Screen, note, one, painted, streamed};
use super::progress::{Redrawn, TICK};
use super::text::{clean, now, precise, took};
use super::watch::{Heard, Resuming, Source};
use jiff::Timestamp;
use proto::millwright::v1::boot_service_client::BootServiceClient;
use proto::millwright::v1::{BootNode, WatchBootNodeRequest};
use tonic::{Status, Streaming};

/// Of the installer's lines, in the block.
const LINES: usize = 5;

/// The changes of one boot node. What it is now comes first, however often it is asked.
struct Changes {
    client: BootServiceClient<Door>,
    id: String,
}

impl Source for Changes {
    type Item = BootNode;
    type Stream = Streaming<BootNode>;
    const RESTARTS: bool = true;

    async fn open(&mut self, _: Option<u64>) -> Result<Self::Stream, Status> {
        Ok(self.client.watch_boot_node(WatchBootNodeRequest { id: self.id.clone() }).await?.into_inner())
    }

    fn sequence(_: &BootNode) -> u64 {
        0
    }
}

/// Where what is heard goes.
enum View {
    Live {
        block: Redrawn,
        colour: bool,
        /// What is wrong with the connection, until something is heard again.
        trouble: Option<String>,
    },
    Lines(Format),
    Quiet,
}

pub async fn watch(node: &str, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    follow(&clients, node, None, view(options.output)).await.map(drop)
}

/// Follows an order that was just given, and ends with its result. Ctrl-C leaves it alone.
pub async fn to_the_end(clients: &Clients, node: &BootNode, options: &ClientOptions) -> Result<(), CliError> {
    let order = node.order.as_ref().map(|order| order.id.clone());
    let view = if options.output.is_for_people() { view(options.output) } else { View::Quiet };
    let ended = tokio::select! {
        ended = follow(clients, &node.id, order, view) => ended.map_err(CliError::outcome_unknown)?,
        _ = tokio::signal::ctrl_c() => {
            return Err(CliError::interrupted(format!("\n{} goes on without you", node.id))
                .hint(format!("millwright boot watch {}", node.id)));
        }
    };
    if !options.output.is_for_people() {
        one(options.output, &ended, &ended.id, |node| vec![line(node)]).map_err(CliError::outcome_unknown)?;
    }
    let because = ended.order.as_ref().map(|order| order.closed_because.as_str()).unwrap_or_default();
    if because == "done" {
        return Ok(());
    }
    let why = ended.last_install_error.as_deref().map(|error| format!(": {}", clean(error))).unwrap_or_default();
    Err(CliError::failed(format!("{} is {}{why}", ended.id, ended.state))
        .because("INSTALL_FAILED")
        .hint(format!("millwright boot show {} has its last lines; millwright boot retry --help", ended.id)))
}

fn view(format: Format) -> View {
    let screen = Screen::stdout();
    if format.is_for_people() && screen.live {
        return View::Live { block: Redrawn::default(), colour: screen.colour, trouble: None };
    }
    View::Lines(format)
}

/// Until the order is closed that is open at the beginning, or named.
async fn follow(
    clients: &Clients,
    node: &str,
    mut order: Option<String>,
    mut view: View,
) -> Result<BootNode, CliError> {
    let mut changes = Resuming::new(Changes { client: clients.boot.clone(), id: node.to_owned() }, None);
    let mut tick = tokio::time::interval(TICK);
    let mut last: Option<BootNode> = None;
    loop {
        let heard = {
            let next = changes.next();
            tokio::pin!(next);
            loop {
                tokio::select! {
                    heard = &mut next => break heard?,
                    _ = tick.tick() => {
                        if let Some(node) = &last {
                            view.draw(node)?;
                        }
                    }
                }
            }
        };
        match heard {
            Heard::Item(node) => {
                order = order.or_else(|| open_order(&node).map(|order| order.id.clone()));
                let ended = order
                    .as_ref()
                    .is_some_and(|id| node.order.as_ref().is_none_or(|now| now.id != *id || now.state != "open"));
                view.told(&node, last.as_ref())?;
                if ended {
                    view.last(&node)?;
                    return Ok(node);
                }
                last = Some(node);
            }
            Heard::Lost(text) => view.lost(text),
            Heard::End => {
                if let Heard::Lost(text) = changes.again("the server ended the stream early")? {
                    view.lost(text);
                }
            }
        }
    }
}

impl View {
    fn told(&mut self, node: &BootNode, before: Option<&BootNode>) -> Result<(), CliError> {
        match self {
            View::Live { trouble, .. } => {
                *trouble = None;
                self.draw(node)
            }
            View::Lines(format) if !format.is_for_people() => streamed(*format, node, &node.id, line),
            // when it was seen is no news to a person
            View::Lines(_) if before.is_some_and(|before| line(before) == line(node)) => Ok(()),
            View::Lines(format) => {
                streamed(*format, node, &node.id, |node| format!("{}  {}", precise(Some(&moment(now()))), line(node)))
            }
            View::Quiet => Ok(()),
        }
    }

    fn draw(&mut self, node: &BootNode) -> Result<(), CliError> {
        match self {
            View::Live { block, colour, trouble } => {
                let mut lines = frame(node, *colour, now());
                lines.extend(trouble.iter().map(|text| format!("  {}", clean(text))));
                block.draw(lines)
            }
            View::Lines(_) | View::Quiet => Ok(()),
        }
    }

    fn lost(&mut self, text: String) {
        match self {
            View::Live { trouble, .. } => *trouble = Some(text),
            View::Lines(_) | View::Quiet => note(&text),
        }
    }

    fn last(&mut self, node: &BootNode) -> Result<(), CliError> {
        match self {
            View::Live { block, colour, .. } => block.last(&frame(node, *colour, now())),
            View::Lines(_) | View::Quiet => Ok(()),
        }
    }
}

fn moment(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}

/// State, attempt, progress and the installer's last word, on one line.
fn line(node: &BootNode) -> String {
    let mut text = format!("{}  {:14}", clean(&node.id), clean(&node.state));
    if let Some(order) = open_order(node) {
        text.push_str(&format!("  {} attempt {}", clean(&order.task), order.attempt));
        if let Some(percent) = node.install_progress {
            text.push_str(&format!("  {percent}%"));
        }
        if let Some(last) = last_lines(order, 1).first() {
            text.push_str(&format!("  {last}"));
        }
    }
    if let Some(error) = &node.last_install_error {
        text.push_str(&format!("  {}", clean(error)));
    }
    text.trim_end().to_owned()
}

/// The block's lines.
fn frame(node: &BootNode, colour: bool, now: Timestamp) -> Vec<String> {
    let state = clean(&node.state);
    let since = took(node.state_changed_at.as_ref(), None, now).unwrap_or_default();
    let mut lines = vec![format!(
        "{}  {}  {}  {since}",
        clean(&node.id),
        clean(&node.mac_address),
        painted(&state, &state, colour)
    )];
    if let Some(order) = &node.order {
        let age = took(order.started_at.as_ref(), order.closed_at.as_ref(), now).unwrap_or_default();
        let with =
            if order.workflow_id.is_empty() { String::new() } else { format!(" with {}", clean(&order.workflow_id)) };
        let is = match (order.state.as_str(), order.offered_at.is_some(), order.started_at.is_some()) {
            ("open", false, _) => "waits for it to boot from the network",
            ("open", true, false) => "its installer is handed out",
            ("open", true, true) => "under way",
            _ => order.closed_because.as_str(),
        };
        lines.push(format!("  {}{with}, attempt {}: {}  {age}", clean(&order.task), order.attempt, clean(is)));
        if let Some(percent) = node.install_progress.filter(|_| order.state == "open") {
            lines.push(format!("  {}", bar(percent)));
        }
        lines.extend(last_lines(order, LINES).into_iter().map(|line| format!("  | {line}")));
    }
    if let Some(error) = &node.last_install_error {
        lines.push(format!("  last error: {}", clean(error)));
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::millwright::v1::InstallOrder;

    fn installing(percent: i32) -> BootNode {
        let order = InstallOrder {
            id: "ord_1".into(),
            task: "install".into(),
            state: "open".into(),
            workflow_id: "debian".into(),
            attempt: 2,
            offered_at: Some(prost_types::Timestamp::default()),
            started_at: Some(prost_types::Timestamp::default()),
            log_tail: "writing\nstill \u{1b}[2Jwriting\n".into(),
            ..InstallOrder::default()
        };
        BootNode {
            id: "btn_1".into(),
            mac_address: "52:54:00:00:00:01".into(),
            state: "installing".into(),
            install_progress: Some(percent),
            last_install_error: Some("no disk".into()),
            order: Some(order),
            ..BootNode::default()
        }
    }

    #[test]
    fn an_installation_is_a_line_and_a_block_with_its_bar() {
        let node = installing(40);
        let text = line(&node);
        assert_eq!(text, "btn_1  installing      install attempt 2  40%  still \u{fffd}[2Jwriting  no disk");
        let lines = frame(&node, false, Timestamp::from_second(10).expect("in range"));
        assert_eq!(
            lines,
            [
                "btn_1  52:54:00:00:00:01  installing",
                "  install with debian, attempt 2: under way  10.0s",
                "  [############------------------]  40%",
                "  | writing",
                "  | still \u{fffd}[2Jwriting",
                "  last error: no disk",
            ]
        );
    }
}
