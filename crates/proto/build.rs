//! Compiles the proto files without `protoc`: protox parses them, tonic generates from the result.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["baremetal/v1/baremetal.proto", "millwright/v1/engine.proto"];
    println!("cargo:rerun-if-changed=../../proto");
    let set = protox::compile(files, ["../../proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), set.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(true)
        // maps in key order, so that equal messages have equal bytes
        .btree_map(".")
        .compile_fds(set)?;
    Ok(())
}
