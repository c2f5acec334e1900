//! How ranks are started.

use std::process::Command;

use anyhow::ensure;

/// Whether ranks are bound to cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Binding {
    /// As `core`, unless there are more ranks than cores.
    Auto,
    /// Each rank stays on a core of its own.
    Core,
    /// The kernel places them as it likes.
    None,
}

/// A way to start ranks.
#[derive(Debug, Clone, PartialEq)]
pub enum Launch {
    /// mpirun on this machine.
    Here(Binding),
    /// What the user said, by words.
    Told(Vec<String>),
}

/// What stands for the number of ranks in what the user said.
const RANKS: &str = "{ranks}";

impl Launch {
    /// From what the user said, if anything.
    pub fn new(template: Option<&str>, binding: Binding) -> anyhow::Result<Self> {
        let Some(template) = template else { return Ok(Self::Here(binding)) };
        let words: Vec<String> = template.split_whitespace().map(str::to_owned).collect();
        ensure!(template.contains(RANKS), "the launcher {template:?} does not say {RANKS}: as in `mpirun -np {RANKS}`");
        Ok(Self::Told(words))
    }

    /// Whether ranks may be on other machines, whose writing to a shared folder the kernel here does not tell.
    pub fn may_be_remote(&self) -> bool {
        matches!(self, Self::Told(_))
    }

    /// The command without the program that is to be started.
    pub fn command(&self, ranks: usize) -> Command {
        match self {
            Self::Told(words) => {
                let words: Vec<String> = words.iter().map(|word| word.replace(RANKS, &ranks.to_string())).collect();
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
            Self::Here(binding) => here(ranks, *binding),
        }
    }
}

fn here(ranks: usize, binding: Binding) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bound = match binding {
        Binding::Auto => ranks <= cores,
        Binding::Core => true,
        Binding::None => false,
    };
    let mut command = Command::new("mpirun");
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        command.arg("--allow-run-as-root");
    }
    command.arg("--oversubscribe");
    command.args(if bound { ["--map-by", "core", "--bind-to", "core"].as_slice() } else { &["--bind-to", "none"] });
    command.args(["-np", &ranks.to_string()]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(launch: &Launch, ranks: usize) -> String {
        format!("{:?}", launch.command(ranks)).replace('"', "")
    }

    #[test]
    fn templates_are_filled_in() {
        let launch = Launch::new(Some("srun  --mpi=pmix -n {ranks}"), Binding::Auto).expect("a launcher");
        assert_eq!(shown(&launch, 12), "srun --mpi=pmix -n 12");
        assert!(Launch::new(Some("mpirun -np 2"), Binding::Auto).is_err());
    }

    #[test]
    fn ranks_are_bound_unless_there_are_too_many() {
        assert!(shown(&Launch::Here(Binding::Auto), 1).ends_with("--bind-to core -np 1"));
        assert!(shown(&Launch::Here(Binding::Auto), 100_000).ends_with("--bind-to none -np 100000"));
        assert!(shown(&Launch::Here(Binding::None), 1).ends_with("--bind-to none -np 1"));
    }
}
