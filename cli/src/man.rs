//! `wholegrain man`: manual pages.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clap_mangen::Man;
use wholegrain_server::path_owners::check_directory_as_root;

use crate::failure::{EXIT_CODES, Failure};

const EXAMPLES: &str = "\
Examples:
  wholegrain man | man -l -
  wholegrain man --dir ~/.local/share/man/man1";

/// Print the manual page, or write one for each subcommand into a directory
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct ManArgs {
    /// Write wholegrain.1, wholegrain-query.1 and so on here
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub fn run(args: &ManArgs) -> Result<(), Failure> {
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        Man::new(crate::command_line()).render(&mut page).map_err(Failure::writing("the manual page"))?;
        return std::io::stdout().write_all(&page).map_err(Failure::writing("standard output"));
    };
    let failed = |error| Failure::writing(&dir.display().to_string())(error);
    check_directory_as_root(dir).map_err(Failure::Failed)?;
    fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(crate::command_line(), dir).map_err(failed)
}
