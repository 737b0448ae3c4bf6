//! Compiles the proto files without `protoc`: protox parses them, tonic generates from the result.

use prost::Message as _;

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
    "millwright/v1/token.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../proto");
    let mut compiler = protox::Compiler::new(["../../proto"])?;
    compiler.include_source_info(true).include_imports(true).open_files(FILES)?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    // encoded by the compiler: decoded and encoded again, the HTTP options would be lost
    let encoded = compiler.encode_file_descriptor_set();
    std::fs::write(out.join("descriptors.bin"), &encoded)?;
    let set = prost_types::FileDescriptorSet::decode(encoded.as_slice())?;
    tonic_prost_build::configure()
        .build_transport(true)
        // maps in key order, so that equal messages have equal bytes
        .btree_map(".")
        // what must not be printed by mistake prints nothing: see the library
        .skip_debug(["millwright.v1.SetCredentialRequest"])
        .compile_fds(set)?;
    Ok(())
}
