//! One run of one path in callgrind, and the file that it leaves.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The count of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Count {
    /// Instructions executed in user space, on all threads.
    pub instructions: u64,
    /// Units that they were executed for.
    pub units: u64,
    /// Processor features by which libraries select their code ([`crate::paths::run`]).
    pub processor: String,
    /// Callgrind's file, for `callgrind_annotate`.
    pub file: PathBuf,
}

impl Count {
    /// Instructions for each unit, to a tenth.
    pub fn each(&self) -> f64 {
        (self.instructions as f64 * 10.0 / self.units.max(1) as f64).round() / 10.0
    }
}

/// The version of valgrind; the error names the package.
pub fn version(valgrind: &Path) -> anyhow::Result<String> {
    let output = Command::new(valgrind).arg("--version").output().with_context(|| {
        format!(
            "counting instructions needs valgrind, and {} could not be started: install Debian's package valgrind (testing/prepare does)",
            valgrind.display()
        )
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().strip_prefix("valgrind-") {
        Some(version) if output.status.success() => Ok(version.to_owned()),
        _ => bail!("{} --version said {:?}, which is not valgrind's way", valgrind.display(), text.trim()),
    }
}

/// Runs the path `name` of this very program and leaves callgrind's file in `dir`.
pub fn count(valgrind: &Path, name: &str, dir: &Path) -> anyhow::Result<Count> {
    let out = dir.join(format!("{name}.out"));
    for old in dumps(dir, name) {
        std::fs::remove_file(&old).with_context(|| format!("removing {} of an earlier run", old.display()))?;
    }
    let mut command = Command::new(valgrind);
    command.args(["--tool=callgrind", "--quiet", "--instr-atstart=no"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(std::env::current_exe().context("finding this program")?).args(["run", name]);
    // The variables lie on the stack: they would change the count.
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path);
    let output = command.output().with_context(|| format!("starting {}", valgrind.display()))?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("{name} in valgrind ended with {}: {}", output.status, stderr.trim());
    }
    let reported = stdout.trim().split_once(' ').and_then(|(units, processor)| Some((units.parse().ok()?, processor)));
    let (units, processor) =
        reported.with_context(|| format!("{name} did not print its units: {stdout:?} {stderr}"))?;
    for file in dumps(dir, name) {
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        if let Some(instructions) = total(&text, name) {
            // In place of callgrind's output at the end, when it no longer counts.
            std::fs::rename(&file, &out).with_context(|| format!("renaming {}", file.display()))?;
            return Ok(Count { instructions, units, processor: processor.to_owned(), file: out });
        }
    }
    bail!("callgrind left no count of {name} in {}: {}", dir.display(), stderr.trim())
}

/// The files that a run left: callgrind numbers them.
fn dumps(dir: &Path, name: &str) -> Vec<PathBuf> {
    let begins = format!("{name}.out");
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&begins))).collect()
}

/// The sum in a file that was written at the program's own request under this name.
fn total(text: &str, name: &str) -> Option<u64> {
    let asked = format!("desc: Trigger: Client Request: {name}");
    text.lines().find(|line| *line == asked)?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals:").or(line.strip_prefix("summary:")))?;
    totals.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_named_dump() {
        let file = "version: 1\ncreator: callgrind-3.19.0\ndesc: Trigger: Client Request: encode\n\nevents: Ir\nfn=(1) f\n+1 7\n\ntotals: 4711\n";
        assert_eq!(total(file, "encode"), Some(4711));
        assert_eq!(total(file, "encode-batch"), None);
        assert_eq!(total(&file.replace("Client Request: encode", "Program termination"), "encode"), None);
    }

    #[test]
    fn without_valgrind_the_error_names_the_package() {
        let error = version(Path::new("/nowhere/valgrind")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/valgrind") && error.contains("install Debian's package valgrind"), "{error}");
        let error = version(Path::new("/bin/true")).unwrap_err().to_string();
        assert!(error.contains("not valgrind's way"), "{error}");
    }
}
