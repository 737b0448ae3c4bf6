//! `millwright-agent`: the command line of the node agent.

fn main() {}
