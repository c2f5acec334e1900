//! Output: to standard output, or to a file that appears when it is complete; as a table, CSV or JSON.

pub mod readings;
pub mod style;
pub mod table;
pub mod values;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufWriter, IsTerminal, Stdout, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use wholegrain_model::text::escaped;
use wholegrain_server::path_owners::check_above_as_root;

use crate::failure::Failure;
use style::Style;
use table::Table;

/// The mode of files with readings: the group may read them; the umask may restrict it further.
const FILE_MODE: u32 = 0o640;

/// The format of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// Aligned columns, for people
    Table,
    /// Comma-separated values with a header
    Csv,
    /// One JSON object per line
    Json,
}

/// The format of one result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResultFormat {
    /// Aligned tables, for people
    Table,
    /// One indented JSON object
    Json,
}

/// The option `--json` of subcommands that print one result.
#[derive(Debug, Args)]
pub struct JsonOption {
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

impl JsonOption {
    /// Prints the value as JSON if the option is given, else with `write`.
    pub fn print(
        &self,
        value: &impl Serialize,
        write: impl FnOnce(Style, &mut Output) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if self.json { print_json(value) } else { print(write) }
    }
}

/// The option `--json` of subcommands that print a list.
#[derive(Debug, Args)]
pub struct JsonLinesOption {
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

impl JsonLinesOption {
    /// Prints the values as JSON if the option is given, else the table.
    pub fn print<T: Serialize>(
        &self,
        values: impl IntoIterator<Item = T>,
        table: impl FnOnce() -> Table,
    ) -> Result<(), Failure> {
        if self.json { print_json_lines(values) } else { print_table(&table()) }
    }
}

/// Asks a question that is answered with yes or no on the terminal; without a terminal the failure is `advice`.
pub fn confirm(question: &str, advice: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::Usage(advice.to_owned()));
    }
    eprint!("{question} [y/N] ");
    let mut line = String::new();
    let cannot_read = |error| Failure::Failed(format!("cannot read the confirmation: {error}"));
    io::stdin().lock().read_line(&mut line).map_err(cannot_read)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Prints to standard output.
pub fn print(write: impl FnOnce(Style, &mut Output) -> io::Result<()>) -> Result<(), Failure> {
    let mut output = Output::open(None)?;
    write(style::on_stdout(), &mut output).map_err(Failure::writing("standard output"))?;
    output.finish()
}

/// Prints a table to standard output.
pub fn print_table(table: &Table) -> Result<(), Failure> {
    print(|style, out| table.write(style, out))
}

/// Writes names with their values, without those whose value is empty. Further lines of a value are indented.
pub fn write_properties(properties: &[(&str, String)], style: Style, out: &mut impl Write) -> io::Result<()> {
    let widest = properties.iter().map(|(name, _)| table::width(name)).max().unwrap_or(0);
    properties.iter().filter(|(_, value)| !value.is_empty()).try_for_each(|(name, value)| {
        let mut lines = value.split('\n');
        let first = lines.next().unwrap_or_default();
        writeln!(out, "{}  {}", style.head(&format!("{name:<widest$}")), escaped(first))?;
        lines.try_for_each(|line| writeln!(out, "{:widest$}  {}", "", escaped(line)))
    })
}

/// Prints indented JSON to standard output.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(|_, out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        writeln!(out)
    })
}

/// Prints one JSON object per line to standard output.
pub fn print_json_lines<T: Serialize>(values: impl IntoIterator<Item = T>) -> Result<(), Failure> {
    print(|_, out| {
        values.into_iter().try_for_each(|value| {
            serde_json::to_writer(&mut *out, &value)?;
            writeln!(out)
        })
    })
}

pub enum Output {
    Stdout(BufWriter<Stdout>),
    /// A file under a temporary name until it is finished.
    File(BufWriter<File>, PartialFile),
}

/// An unfinished file; dropping it removes it.
pub struct PartialFile {
    partial: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl Output {
    /// Opens the file, or standard output without one.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Output::Stdout(BufWriter::new(io::stdout()))) };
        let mut name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
        if name.is_empty() || path.is_dir() {
            return Err(Failure::Usage(format!("--output {} is a directory; name a file", path.display())));
        }
        check_above_as_root(path).map_err(Failure::Usage)?;
        name.push(format!(".{}.part", std::process::id()));
        let partial = path.with_file_name(name);
        // Removes a file or a link under this name, so that the file is always a new one.
        let _ = std::fs::remove_file(&partial);
        let file =
            OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&partial).map_err(|error| {
                Failure::Failed(format!("cannot create {} for --output: {error}", partial.display()))
            })?;
        Ok(Output::File(BufWriter::new(file), PartialFile { partial, path: path.to_owned(), finished: false }))
    }

    /// Whether the output goes to a terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Output::Stdout(_)) && io::stdout().is_terminal()
    }

    /// The name of the destination for messages.
    pub fn name(&self) -> String {
        match self {
            Output::Stdout(_) => "standard output".to_owned(),
            Output::File(_, partial) => partial.path.display().to_string(),
        }
    }

    /// Flushes, and renames a file to its final name.
    pub fn finish(mut self) -> Result<(), Failure> {
        let name = self.name();
        self.flush().map_err(Failure::writing(&name))?;
        if let Output::File(file, partial) = &mut self {
            file.get_ref().sync_all().map_err(Failure::writing(&name))?;
            std::fs::rename(&partial.partial, &partial.path).map_err(Failure::writing(&name))?;
            partial.finished = true;
        }
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.finished {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Stdout(out) => out.write(bytes),
            Output::File(out, _) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Stdout(out) => out.flush(),
            Output::File(out, _) => out.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_not_for_everybody_and_root_writes_none_where_others_lead() {
        use std::os::unix::fs::{MetadataExt, chown, symlink};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        Output::open(Some(&path)).unwrap().finish().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777 & !0o640, 0);
        // SAFETY: the call has no arguments and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            println!("NOT TESTED: only root can give a directory to another user");
            return;
        }
        let (theirs, victim) = (dir.path().join("theirs"), dir.path().join("victim"));
        std::fs::create_dir(&theirs).unwrap();
        std::fs::create_dir(&victim).unwrap();
        symlink(&victim, theirs.join("link")).unwrap();
        chown(&theirs, Some(54_321), None).unwrap();
        let Err(Failure::Usage(why)) = Output::open(Some(&theirs.join("link/a.csv"))) else { panic!("not refused") };
        assert!(why.contains("theirs, which contains ") && why.contains("uid 54321"), "{why}");
        assert_eq!(std::fs::read_dir(victim).unwrap().count(), 0);
    }

    #[test]
    fn a_file_appears_when_finished_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        let mut output = Output::open(Some(&path)).unwrap();
        output.write_all(b"x").unwrap();
        assert!(!path.exists());
        output.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
        // A link under the name of the unfinished file is not followed.
        let victim = dir.path().join("victim");
        std::fs::write(&victim, b"whole").unwrap();
        let planted = dir.path().join(format!("c.csv.{}.part", std::process::id()));
        std::os::unix::fs::symlink(&victim, &planted).unwrap();
        let mut output = Output::open(Some(&dir.path().join("c.csv"))).unwrap();
        output.write_all(b"x").unwrap();
        output.finish().unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"whole");
        assert!(dir.path().join("c.csv").symlink_metadata().unwrap().is_file());
        std::fs::remove_file(victim).unwrap();
        std::fs::remove_file(dir.path().join("c.csv")).unwrap();
        drop(Output::open(Some(&dir.path().join("b.csv"))).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the unfinished one is gone");
        assert!(matches!(Output::open(Some(dir.path())), Err(Failure::Usage(_))));
    }
}
