//! Programs of others: where they are, which version, and what to install when they are not there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Where Debian puts daemons, which a user's PATH may lack.
const FURTHER: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The path of a program; or an error that says which package has it.
pub fn installed(name: &str, package: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(FURTHER.iter().map(PathBuf::from));
    let found = dirs.map(|dir| dir.join(name)).find(|file| file.is_file());
    found.with_context(|| format!("{name} is not installed: bench/prepare does it, or apt-get install {package}"))
}

/// The first word with a digit in front that a program prints of itself when it is asked with these arguments.
pub fn version(program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("asking {} for its version", program.display()))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    match version_in(&text) {
        Some(version) => Ok(version),
        None => bail!("{} {} tells no version: {}", program.display(), arguments.join(" "), text.trim()),
    }
}

fn version_in(text: &str) -> Option<String> {
    let mut words = text.split_whitespace().map(|word| word.trim_matches(['v', ',', ';', '(', ')']));
    let word = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))?;
    Some(word.to_owned())
}

/// A program of ours beside this one, or in a folder above, as `cargo` and packages put them.
pub fn ours(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("this program's path")?;
    let folder = own.ancestors().skip(1).find(|dir| dir.join(name).is_file());
    let folder = folder.with_context(|| format!("{name} is not beside {}: `make build` builds it", own.display()))?;
    Ok(folder.join(name))
}

/// The standard output of a command that has to succeed.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("what {command:?} printed"))
}

/// The name of this process's user, for daemons that otherwise change to one of their own.
pub fn user() -> anyhow::Result<String> {
    Ok(output(Command::new("id").arg("-un"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_print() {
        for (text, version) in [
            ("Usage: collectd [OPTIONS]\n  -h\n\ncollectd 5.12.0.git, http://x.org/", "5.12.0.git"),
            ("gmond 3.7.2\n", "3.7.2"),
            ("node_exporter, version 1.5.0 (branch: x)", "1.5.0"),
            ("tool v2.1", "2.1"),
        ] {
            assert_eq!(version_in(text).as_deref(), Some(version));
        }
        assert_eq!(version_in("no version"), None);
    }

    #[test]
    fn what_is_missing_says_what_to_install() {
        let error = installed("no-such-monitor", "a-package").unwrap_err().to_string();
        assert!(error.contains("apt-get install a-package") && error.contains("bench/prepare"), "{error}");
    }
}
