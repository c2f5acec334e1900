//! Compiles the programs for the kernel. Without clang the crate has none, and says so when it is configured.

use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/programs.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed=src/bucket.h");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("programs.o");
    if let Err(reason) = compile(&out) {
        println!("cargo::warning=the plug-in ebpf is built without its programs, and refuses to start: {reason}");
        if let Err(error) = std::fs::write(&out, []) {
            println!("cargo::error={}: {error}", out.display());
        }
        // A file that never exists: the next build looks for clang again.
        println!("cargo::rerun-if-changed={}", out.with_file_name("no-clang").display());
    }
}

fn compile(out: &std::path::Path) -> Result<(), String> {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let endian = match std::env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("big") => "bpfeb",
        _ => "bpfel",
    };
    let status = Command::new(&clang)
        .args(["-target", endian, "-mcpu=v3", "-O2", "-g", "-nostdinc", "-Wall", "-Wextra", "-Werror", "-c"])
        .arg(SOURCE)
        .arg("-o")
        .arg(out)
        .status()
        .map_err(|error| format!("cannot run {clang} ({error}); install clang"))?;
    status.success().then_some(()).ok_or_else(|| format!("{clang} refused {SOURCE}"))
}
