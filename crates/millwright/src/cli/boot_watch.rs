//! Following one boot node: a block with a progress bar that is redrawn in place on a terminal, a line for each change
//! elsewhere.

use super::ClientOptions;
use super::boot_look::{bar, last_lines, open_order};
use super::connect::{Clients, connect};
use super::exit::CliError;
use super::follow::{Followed, View, follow};
use super::output::{Screen, one, painted};
use super::text::{clean, took};
use jiff::Timestamp;
use proto::millwright::v1::{BootNode, WatchBootNodeRequest};

/// Of the installer's lines, in the block.
const LINES: usize = 5;

pub async fn watch(node: &str, options: &ClientOptions) -> Result<(), CliError> {
    let clients = connect(options).await?;
    until_closed(&clients, node, None, View::stdout(options.output)).await.map(drop)
}

/// Follows an order that was just given, and ends with its result. Ctrl-C leaves it alone.
pub async fn to_the_end(clients: &Clients, node: &BootNode, options: &ClientOptions) -> Result<(), CliError> {
    let order = node.order.as_ref().map(|order| order.id.clone());
    let view = if options.output.is_for_people() { View::stdout(options.output) } else { View::Quiet };
    let ended = tokio::select! {
        ended = until_closed(clients, &node.id, order, view) => ended.map_err(CliError::outcome_unknown)?,
        _ = tokio::signal::ctrl_c() => {
            return Err(CliError::interrupted(format!("\n{} goes on without you", node.id))
                .hint(format!("millwright boot watch {}", node.id)));
        }
    };
    if !options.output.is_for_people() {
        one(options.output, &ended, &ended.id, |node| vec![node.line()]).map_err(CliError::outcome_unknown)?;
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

/// Until the order is closed that is open at the beginning, or named.
async fn until_closed(
    clients: &Clients,
    node: &str,
    mut order: Option<String>,
    view: View,
) -> Result<BootNode, CliError> {
    let ask = || WatchBootNodeRequest { id: node.to_owned() };
    let open = async || Ok(clients.boot.clone().watch_boot_node(ask()).await?.into_inner());
    follow(open, view, |node| {
        order = order.take().or_else(|| open_order(node).map(|order| order.id.clone()));
        order.as_ref().is_some_and(|id| node.order.as_ref().is_none_or(|now| now.id != *id || now.state != "open"))
    })
    .await
}

impl Followed for BootNode {
    fn id(&self) -> &str {
        &self.id
    }

    /// State, attempt, progress and the installer's last word, on one line.
    fn line(&self) -> String {
        let mut text = format!("{}  {:14}", clean(&self.id), clean(&self.state));
        if let Some(order) = open_order(self) {
            text.push_str(&format!("  {} attempt {}", clean(&order.task), order.attempt));
            if let Some(percent) = self.install_progress {
                text.push_str(&format!("  {percent}%"));
            }
            if let Some(last) = last_lines(order, 1).first() {
                text.push_str(&format!("  {last}"));
            }
        }
        if let Some(error) = &self.last_install_error {
            text.push_str(&format!("  {}", clean(error)));
        }
        text.trim_end().to_owned()
    }

    /// The block's lines.
    fn frame(&self, screen: Screen, now: Timestamp) -> Vec<String> {
        let state = clean(&self.state);
        let since = took(self.state_changed_at.as_ref(), None, now).unwrap_or_default();
        let mut lines = vec![format!(
            "{}  {}  {}  {since}",
            clean(&self.id),
            clean(&self.mac_address),
            painted(&state, &state, screen.colour)
        )];
        if let Some(order) = &self.order {
            let age = took(order.started_at.as_ref(), order.closed_at.as_ref(), now).unwrap_or_default();
            let with = if order.workflow_id.is_empty() {
                String::new()
            } else {
                format!(" with {}", clean(&order.workflow_id))
            };
            let is = match (order.state.as_str(), order.offered_at.is_some(), order.started_at.is_some()) {
                ("open", false, _) => "waits for it to boot from the network",
                ("open", true, false) => "its installer is handed out",
                ("open", true, true) => "under way",
                _ => order.closed_because.as_str(),
            };
            lines.push(format!("  {}{with}, attempt {}: {}  {age}", clean(&order.task), order.attempt, clean(is)));
            if let Some(percent) = self.install_progress.filter(|_| order.state == "open") {
                lines.push(format!("  {}", bar(percent)));
            }
            lines.extend(last_lines(order, LINES).into_iter().map(|line| format!("  | {line}")));
        }
        if let Some(error) = &self.last_install_error {
            lines.push(format!("  last error: {}", clean(error)));
        }
        lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
    }
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
        let text = node.line();
        assert_eq!(text, "btn_1  installing      install attempt 2  40%  still \u{fffd}[2Jwriting  no disk");
        let lines = node.frame(Screen::PLAIN, Timestamp::from_second(10).expect("in range"));
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
