//! Programs whose run time shows what monitoring costs.
//!
//! - In: the name of a workload, its size, the number of ranks, how ranks are started.
//! - Out: one [`Outcome`] as a line of JSON on standard output.
//! - Never: anything about monitors; a time for a run whose result was wrong.
//!
//! The programs themselves are in `bench/workloads`, whose README says what each is and where it comes from. Their sources are
//! part of this program, which compiles them with the machine's own compiler.

mod catalogue;
mod compile;
mod hpcc;
mod launch;
mod marks;
mod printed;
mod program;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

pub use catalogue::NAMES;
pub use launch::{Binding, Launch};
pub use program::{Prepared, Request};

/// What one run of a workload gave. Printed as one line of JSON by `wholegrain-bench workload run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The workload, as in [`NAMES`].
    pub workload: String,
    /// Its size, as the workload understands it: a class of NAS (`S`, `W`, `A`, …), or a number with a meaning of its own.
    pub size: String,
    /// Processes.
    pub ranks: usize,
    /// What the program itself took for its timed part, s: without starting and MPI_Init.
    pub seconds: f64,
    /// Whether the program's own check of its result passed. A run that failed it has no place in any mean.
    pub verified: bool,
    /// Further figures by name, with the unit last in the name: `hpl_gflops`, `triad_gb_s`, `quanta`, `noise_share`.
    pub figures: BTreeMap<String, f64>,
    /// Of the fixed-work loop: how many quanta took so long, as (lower edge of the bin in ns, count), by edge. Empty for others.
    pub histogram: Vec<(u64, u64)>,
}

/// Where compiled programs are kept unless told otherwise.
const DIR: &str = "target/bench/workloads";
/// How long one run may take unless told otherwise, s.
const TIMEOUT_S: u64 = 3600;

/// Runs the programs of the overhead experiment one at a time.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  wholegrain-bench workload list
  wholegrain-bench workload build
  wholegrain-bench workload run wavefront --size W --ranks 2
  wholegrain-bench workload run hpl --size 6000 --ranks 16 --launcher 'srun --mpi=pmix -n {ranks}' --dir /shared/workloads")]
pub struct Options {
    #[command(subcommand)]
    what: WorkloadCommand,
}

#[derive(clap::Subcommand)]
enum WorkloadCommand {
    /// Runs one and prints its outcome as one line of JSON. Compiles it first if that was not done.
    Run(RunOptions),
    /// Compiles all, and finds the work of the noise loop's quantum on this machine unless that is known; run it before anything is measured.
    Build(BuildOptions),
    /// What there is, with sizes.
    List {
        /// As JSON: name, about, size, sizes.
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct RunOptions {
    /// Its name, as `workload list` has it.
    name: String,
    /// How much it does: a name or number as `workload list` has it.
    #[arg(long, default_value = "quick")]
    size: String,
    /// Processes.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// How processes are started; `{ranks}` is replaced, words are divided at blanks. Without it: mpirun on this machine.
    #[arg(long)]
    launcher: Option<String>,
    /// Whether each rank is bound to a core of its own, when they are started with the launcher that is there without being told; `auto`
    /// binds them unless they are more than the cores.
    #[arg(long, value_enum, default_value_t = Binding::Auto)]
    binding: Binding,
    /// How long it may take before it is stopped and counts as failed, s.
    #[arg(long, default_value_t = TIMEOUT_S)]
    timeout_s: u64,
    #[command(flatten)]
    built: Built,
}

#[derive(clap::Args)]
struct BuildOptions {
    /// Calibrates the noise loop again. Earlier measurements are not comparable with later ones.
    #[arg(long)]
    recalibrate: bool,
    #[command(flatten)]
    built: Built,
}

/// How and where the programs are compiled.
#[derive(clap::Args, Debug, Clone)]
pub struct Built {
    /// Where compiled programs and their working files are; every node must see it.
    #[arg(long, default_value = DIR)]
    pub dir: PathBuf,
    /// A folder with mpi.h, where the compiler does not find it itself.
    #[arg(long)]
    pub include: Option<PathBuf>,
    /// Further flags of the compiler, after `-O2`; `-ffp-contract=off` follows, without which the known results are not met.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub cflags: String,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    match &options.what {
        WorkloadCommand::Run(options) => {
            let request = Request {
                name: options.name.clone(),
                size: options.size.clone(),
                ranks: options.ranks,
                launch: Launch::new(options.launcher.as_deref(), options.binding)?,
                built: options.built.clone(),
            };
            let outcome = Prepared::new(&request)?.run(Duration::from_secs(options.timeout_s))?;
            println!("{}", serde_json::to_string(&outcome)?);
            Ok(())
        }
        WorkloadCommand::Build(options) => build(options),
        WorkloadCommand::List { json } => list(*json),
    }
}

fn build(options: &BuildOptions) -> anyhow::Result<()> {
    for source in catalogue::sources() {
        let program = compile::compile(source, &options.built)?;
        eprintln!("{}: {}", source.name, program.display());
    }
    let units = program::noise_units(&options.built, options.recalibrate)?;
    eprintln!("noise: {units} units of work a millisecond");
    match hpcc::version() {
        Ok(version) => eprintln!("hpcc: {version}"),
        Err(why) => eprintln!("hpcc and its parts cannot be run: {why}"),
    }
    Ok(())
}

fn list(json: bool) -> anyhow::Result<()> {
    for name in NAMES {
        let known = catalogue::find(name)?;
        let sizes: BTreeMap<&str, &str> = known.sizes.iter().copied().collect();
        if json {
            let line = serde_json::json!({ "name": name, "about": known.about, "size": known.size, "sizes": sizes });
            println!("{line}");
            continue;
        }
        let named: Vec<String> = sizes.iter().map(|(name, means)| format!("{name} = {means}")).collect();
        println!("{name:<14} {}\n{:<14} size: {}; {}", known.about, "", known.size, named.join(", "));
    }
    Ok(())
}

/// The folder of a run, made, as an absolute path: the program is started in it.
fn made(dir: &std::path::Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(dir).with_context(|| format!("making {} for the workloads", dir.display()))?;
    dir.canonicalize().with_context(|| format!("looking up {}", dir.display()))
}
