//! Compiling our own programs, once for each source, compiler and flags.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::catalogue::Source;
use super::{Built, made};

/// Always: known results hold only where a product and a sum are rounded apart.
const FLAGS: [&str; 2] = ["-O2", "-ffp-contract=off"];

/// Compiles a program unless it is there already; its path.
pub fn compile(source: &Source, built: &Built) -> anyhow::Result<PathBuf> {
    let dir = made(&built.dir)?;
    let mut command = compiler(built);
    command.arg(FLAGS[0]).args(built.cflags.split_whitespace()).arg(FLAGS[1]).args(source.flags);
    let mut hasher = DefaultHasher::new();
    (source.text, format!("{command:?}"), version(&command)?).hash(&mut hasher);
    let program = dir.join(format!("{}-{:016x}", source.name, hasher.finish()));
    if program.is_file() {
        return Ok(program);
    }
    // Compiled aside and put in place in one step: another run may do the same at this moment.
    let aside = tempfile::Builder::new().prefix("compile").tempdir_in(&dir).context("making a folder to compile in")?;
    let (text, output) = (aside.path().join(format!("{}.c", source.name)), aside.path().join(source.name));
    std::fs::write(&text, source.text).with_context(|| format!("writing {}", text.display()))?;
    command.arg("-o").arg(&output).arg(&text).args(libraries(built));
    let done = command.output().with_context(|| missing(source.name))?;
    ensure!(
        done.status.success(),
        "{} cannot be compiled: {}\n{}",
        source.name,
        missing(source.name),
        String::from_utf8_lossy(&done.stderr)
    );
    std::fs::rename(&output, &program).with_context(|| format!("putting {} in place", program.display()))?;
    Ok(program)
}

fn missing(name: &str) -> String {
    format!(
        "compiling {name} needs mpicc and mpi.h: install libopenmpi-dev, or say --include with the folder of its mpi.h"
    )
}

fn compiler(built: &Built) -> Command {
    let Some(include) = &built.include else { return Command::new("mpicc") };
    let mut command = Command::new("cc");
    command.arg("-I").arg(include);
    command
}

fn libraries(built: &Built) -> Vec<&'static str> {
    if built.include.is_some() { vec!["-l:libmpi.so.40", "-lm"] } else { vec!["-lm"] }
}

/// What the compiler calls itself.
fn version(command: &Command) -> anyhow::Result<String> {
    let program = Path::new(command.get_program());
    let output = Command::new(program).arg("--version").output();
    let output = output
        .with_context(|| format!("starting {}: install build-essential and libopenmpi-dev", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}
