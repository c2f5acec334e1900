//! `wholegrain completions`: completions for a shell.

use std::io::Write;

use clap::{Args, ValueEnum};
use clap_complete::Shell;

use crate::failure::{EXIT_CODES, Failure};

const EXAMPLES: &str = "\
Examples:
  source <(wholegrain completions bash)
  wholegrain completions zsh > ~/.zfunc/_wholegrain
  wholegrain completions fish > ~/.config/fish/completions/wholegrain.fish";

/// Print completions for a shell
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: KnownShell,
}

/// The shells that are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KnownShell {
    Bash,
    Zsh,
    Fish,
}

/// Runs the subcommand.
pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let shell = match args.shell {
        KnownShell::Bash => Shell::Bash,
        KnownShell::Zsh => Shell::Zsh,
        KnownShell::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut crate::command_line(), "wholegrain", &mut text);
    std::io::stdout().write_all(&text).map_err(Failure::writing("standard output"))
}
