//! `wholegrain man`: manual pages.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;
use wholegrain_server::path_owners::check_directory_as_root;

use crate::failure::Failure;
use crate::output::print;

const EXAMPLES: &str = "\
Examples:
  wholegrain man | man -l -
  wholegrain man --dir ~/.local/share/man/man1";

/// Print the manual page, or write one for each subcommand into a directory
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// Write wholegrain.1, wholegrain-query.1 and so on to this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub fn run(args: &ManArgs, command_line: Command) -> Result<(), Failure> {
    let Some(dir) = &args.dir else { return print(|_, out| Man::new(command_line).render(out)) };
    let shown = dir.display().to_string();
    let failed = Failure::writing(&shown);
    check_directory_as_root(dir).map_err(Failure::Usage)?;
    fs::create_dir_all(dir).map_err(&failed)?;
    clap_mangen::generate_to(command_line, dir).map_err(&failed)
}
