//! Compiles the proto files without `protoc`: protox parses them, tonic generates from the result.

use prost::Message as _;
use std::path::Path;

/// What the one port serves, in every form.
const FILES: &[&str] = &[
    "baremetal/v1/baremetal.proto",
    "millwright/v1/audit.proto",
    "millwright/v1/boot.proto",
    "millwright/v1/cluster.proto",
    "millwright/v1/credential.proto",
    "millwright/v1/engine.proto",
    "millwright/v1/event.proto",
    "millwright/v1/explain.proto",
    "millwright/v1/finding.proto",
    "millwright/v1/hardware.proto",
    "millwright/v1/image.proto",
    "millwright/v1/job.proto",
    "millwright/v1/node.proto",
    "millwright/v1/site.proto",
    "millwright/v1/task.proto",
    "millwright/v1/token.proto",
];

/// What the agents' port serves, and nobody reflects on or transcodes.
const AGENT_FILES: &[&str] = &["millwright/agent/v1/agent.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../proto");
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    compile(FILES, Some(&out.join("descriptors.bin")))?;
    compile(AGENT_FILES, None)
}

fn compile(files: &[&str], descriptors: Option<&Path>) -> Result<(), Box<dyn std::error::Error>> {
    let mut compiler = protox::Compiler::new(["../../proto"])?;
    compiler.include_source_info(true).include_imports(true).open_files(files)?;
    // encoded by the compiler: decoded and encoded again, the HTTP options would be lost
    let encoded = compiler.encode_file_descriptor_set();
    if let Some(path) = descriptors {
        std::fs::write(path, &encoded)?;
    }
    let set = prost_types::FileDescriptorSet::decode(encoded.as_slice())?;
    tonic_prost_build::configure()
        .build_transport(true)
        // maps in key order, so that equal messages have equal bytes
        .btree_map(".")
        // what must not be printed by mistake prints nothing: see the library
        .skip_debug([
            "millwright.v1.SetCredentialRequest",
            "millwright.v1.IssuedNode",
            "millwright.agent.v1.EnrollRequest",
        ])
        .compile_fds(set)?;
    Ok(())
}
