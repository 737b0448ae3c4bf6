//! `millwright-agent`: the command line of the node agent.

fn main() -> std::process::ExitCode {
    agent::options::main()
}
