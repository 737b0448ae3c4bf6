//! Which node object is this machine. Names are given by people and installers; the system UUID is the
//! hardware's own. So the UUID decides where there is one, and whatever contradicts it stops us: what follows is
//! draining and deleting.

use crate::objects::NodeObject;
use domain::identity::same_uuid;
use domain::machine::NODE_LABEL;
use provider::{Membership, ProviderError, ProviderResult, Target};

/// How a machine's node is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOf {
    /// Empty: not known.
    pub system_uuid: String,
    /// What its node may be called.
    pub names: Vec<String>,
}

impl NodeOf {
    /// By the system UUID, else by the machine's label `node`, else by its id.
    pub fn machine(target: &Target) -> Self {
        let name = target.labels.get(NODE_LABEL).cloned().unwrap_or_else(|| target.machine_id.to_string());
        Self { system_uuid: target.spec.system_uuid.clone(), names: vec![name] }
    }

    /// In words, for messages.
    pub(crate) fn describe(&self) -> String {
        let names = self.names.join(" or ");
        match self.system_uuid.as_str() {
            "" => format!("a node named {names}"),
            uuid => format!("a node with system UUID {uuid}, or named {names}"),
        }
    }

    fn is_named(&self, node: &Node) -> bool {
        self.names.iter().any(|name| name.eq_ignore_ascii_case(&node.name))
    }

    /// The node of this machine among all of a cluster. Two that could be, or one that is called so and is
    /// another machine, is an error that names both.
    pub(crate) fn find<'n>(&self, nodes: &'n [Node]) -> ProviderResult<Option<&'n Node>> {
        let same = |node: &&Node| same_uuid(&self.system_uuid, &node.system_uuid);
        let by_uuid: Vec<&Node> = nodes.iter().filter(same).collect();
        let by_name: Vec<&Node> = nodes.iter().filter(|node| self.is_named(node)).collect();
        let mut found = by_uuid.clone();
        found.extend(by_name.iter().copied().filter(|named| by_uuid.iter().all(|node| node.name != named.name)));
        match found.as_slice() {
            [] => Ok(None),
            [one] if by_uuid.is_empty() && !self.system_uuid.is_empty() && !one.system_uuid.is_empty() => {
                Err(ProviderError::wrong_machine(format!(
                    "node {} is another machine: system UUID {}, not {}; check the machine's label {NODE_LABEL:?} and its system UUID",
                    one.name, one.system_uuid, self.system_uuid
                )))
            }
            [one] => Ok(Some(one)),
            [one, other, ..] => Err(ProviderError::wrong_machine(format!(
                "two nodes could be this machine: {} (system UUID {}) and {} (system UUID {}), where {} is looked for; delete the one that is not, or correct the machine's label {NODE_LABEL:?} and its system UUID",
                one.name,
                known(&one.system_uuid),
                other.name,
                known(&other.system_uuid),
                self.describe()
            ))),
        }
    }
}

fn known(uuid: &str) -> &str {
    if uuid.is_empty() { "unknown" } else { uuid }
}

/// Of a node, what we need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub name: String,
    pub uid: String,
    pub system_uuid: String,
    pub cordoned: bool,
    /// `None`: it is. Else why not.
    pub not_ready: Option<String>,
}

impl From<NodeObject> for Node {
    fn from(node: NodeObject) -> Self {
        let ready = node.status.conditions.into_iter().find(|c| c.kind == "Ready");
        let not_ready = match ready {
            _ if node.metadata.deletion_timestamp.is_some() => Some("it is being deleted".to_owned()),
            Some(ready) if ready.status == "True" => None,
            Some(ready) if ready.reason.is_empty() && ready.message.is_empty() => {
                Some(format!("its condition Ready is {}", ready.status))
            }
            Some(ready) => Some(format!("{}: {}", ready.reason, ready.message.chars().take(300).collect::<String>())),
            None => Some("it has not reported whether it is ready".to_owned()),
        };
        Self {
            name: node.metadata.name,
            uid: node.metadata.uid,
            system_uuid: node.status.node_info.system_uuid,
            cordoned: node.spec.unschedulable == Some(true),
            not_ready,
        }
    }
}

impl Node {
    pub fn membership(&self) -> Membership {
        self.not_ready.clone().map_or(Membership::Ready, Membership::NotReady)
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test throughout")]
mod tests {
    use super::*;
    use domain::Reason;

    const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";
    const SWAPPED: &str = "33221100-5544-7766-8899-AABBCCDDEEFF";

    fn node(name: &str, uuid: &str) -> Node {
        let (name, uid, system_uuid) = (name.to_owned(), String::new(), uuid.to_owned());
        Node { name, uid, system_uuid, cordoned: false, not_ready: None }
    }

    fn of(uuid: &str, name: &str) -> NodeOf {
        NodeOf { system_uuid: uuid.to_owned(), names: vec![name.to_owned()] }
    }

    #[track_caller]
    fn finds(who: &NodeOf, nodes: &[Node], expected: Option<&str>) {
        let found = who.find(nodes).expect("found or not");
        assert_eq!(found.map(|n| n.name.as_str()), expected);
    }

    #[track_caller]
    fn stops(who: &NodeOf, nodes: &[Node], named: [&str; 2]) {
        let stopped = who.find(nodes).expect_err("stopped");
        assert_eq!(stopped.reason(), Reason::WrongMachine);
        assert!(named.iter().all(|name| stopped.to_string().contains(name)), "{stopped}");
    }

    #[test]
    fn the_uuid_decides_in_either_byte_order_and_any_case() {
        let nodes = [node("a", "ffffffff-0000-0000-0000-000000000000"), node("b", SWAPPED)];
        finds(&of(UUID, "m-1"), &nodes, Some("b"));
        finds(&of(&UUID.to_uppercase(), "b"), &[node("b", UUID)], Some("b"));
        finds(&of(UUID, "m-1"), &nodes[..1], None);
    }

    #[test]
    fn without_a_uuid_the_name_decides() {
        finds(&of("", "B"), &[node("a", UUID), node("b", SWAPPED)], Some("b"));
        finds(&of(UUID, "b"), &[node("b", "")], Some("b"));
        finds(&of("", "c"), &[node("a", UUID)], None);
        // no UUID is no UUID that two share
        finds(&of("", "a"), &[node("a", ""), node("b", "")], Some("a"));
    }

    #[test]
    fn a_contradiction_or_two_matches_stop_us_and_name_both() {
        let other = "ffffffff-0000-0000-0000-000000000000";
        stops(&of(UUID, "a"), &[node("a", other)], [other, UUID]);
        stops(&of(UUID, "m-1"), &[node("a", UUID), node("b", SWAPPED)], ["a (", "b ("]);
        stops(&of(UUID, "b"), &[node("a", UUID), node("b", other)], ["a (", "b ("]);
    }
}
