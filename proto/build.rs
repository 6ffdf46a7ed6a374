//! Compiles the contract in Rust: protox stands in for protoc, so a clean checkout needs no system tool.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let third_party = root.join("third_party");
    let files =
        ["agent_service", "condition", "device", "fleet", "fleet_service", "intent", "intent_service", "status"]
            .map(|name| format!("weir/v1/{name}.proto"));
    println!("cargo::rerun-if-changed=weir");
    println!("cargo::rerun-if-changed=third_party");

    let mut compiler = protox::Compiler::new([root.as_path(), third_party.as_path()])?;
    compiler.include_source_info(true).include_imports(true);
    for file in &files {
        compiler.open_file(file)?;
    }
    let descriptors = compiler.file_descriptor_set();
    let bytes = compiler.encode_file_descriptor_set();
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("weir.descriptors.bin"), &bytes)?;

    tonic_prost_build::configure()
        .extern_path(".google.protobuf.FieldMask", "crate::FieldMask")
        .extern_path(".google.protobuf.Timestamp", "crate::Timestamp")
        .extern_path(".google.protobuf", "::pbjson_types")
        .compile_well_known_types(true)
        .btree_map(".")
        .skip_protoc_run()
        .file_descriptor_set_path(out.join("weir.descriptors.bin"))
        .compile_fds(descriptors)?;
    json_form(&out, &bytes)?;
    Ok(())
}

/// Canonical proto3 JSON for every message; unknown fields are refused, which is right for what people write.
fn json_form(out: &Path, descriptors: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    pbjson_build::Builder::new()
        .register_descriptors(descriptors)?
        .extern_path(".google.protobuf.FieldMask", "crate::FieldMask")
        .extern_path(".google.protobuf.Timestamp", "crate::Timestamp")
        .extern_path(".google.protobuf", "::pbjson_types")
        .btree_map([".weir.v1"])
        .out_dir(out)
        .build(&[".weir.v1"])?;
    Ok(())
}
