//! Programs of two processes whose run time is looked at.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use wholegrain_testing::cgroups::JobGroup;
use wholegrain_testing::checkout;

/// Processes of each program.
const RANKS: &str = "2";
/// What one block of `compute` and one pass of `memory` take on an ordinary core, s; only the length of a run follows from it.
const COMPUTE_BLOCK_S: f64 = 3.1e-3;
/// See [`COMPUTE_BLOCK_S`].
const MEMORY_PASS_S: f64 = 12e-3;
/// MiB of each of the three arrays of a rank of `memory`.
const MEMORY_ARRAY_MIB: &str = "64";
/// Operations a second of HPL with Debian's reference BLAS, two ranks; only the length of a run follows from it.
const HPL_FLOPS: f64 = 3.5e9;

/// A program and what it is started with.
pub struct Mpi {
    /// For people.
    pub name: &'static str,
    command: Vec<String>,
    dir: PathBuf,
}

impl Mpi {
    /// Makes one of `compute`, `memory` and `hpl` that runs for about so many seconds. `include` is a folder with mpi.h, where
    /// the compiler does not find it itself.
    pub fn make(name: &str, seconds: f64, include: Option<&Path>, dir: &Path) -> anyhow::Result<Self> {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let units = |each: f64| ((seconds / each).round().max(1.0)).to_string();
        let (name, command) = match name {
            "compute" => ("compute", vec![compile(name, include, &dir)?, units(COMPUTE_BLOCK_S)]),
            "memory" => {
                ("memory", vec![compile(name, include, &dir)?, units(MEMORY_PASS_S), MEMORY_ARRAY_MIB.to_owned()])
            }
            "hpl" => {
                std::fs::write(dir.join("hpccinf.txt"), hpcc_input(seconds))?;
                ("hpl", vec!["hpcc".to_owned()])
            }
            _ => bail!("{name} is none of compute, memory and hpl"),
        };
        Ok(Self { name, command, dir })
    }

    /// Runs it to its end in a job; the seconds of its own measuring.
    pub fn run(&self, job: &JobGroup) -> anyhow::Result<f64> {
        let log = self.dir.join("out");
        let _ = std::fs::remove_file(&log);
        let _ = std::fs::remove_file(self.dir.join("hpccoutf.txt"));
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "-np", RANKS]).args(&self.command);
        command.current_dir(&self.dir);
        let mut process = job.start(&mut command, &log);
        // Longer than any test may wait for anything: a benchmark's runs are long.
        while process.runs() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let status = process.wait();
        ensure!(status.success(), "{} failed: {}", self.name, process.log());
        let text = match self.name {
            "hpl" => std::fs::read_to_string(self.dir.join("hpccoutf.txt")).context("hpcc's results")?,
            _ => process.log(),
        };
        let word = |line: &str| {
            line.strip_prefix("seconds ").or(line.strip_prefix("HPL_time="))?.split(' ').next()?.parse().ok()
        };
        text.lines().find_map(word).with_context(|| format!("{} printed no time: {text}", self.name))
    }
}

/// Compiles a program of `bench/mpi`; its path.
fn compile(name: &str, include: Option<&Path>, dir: &Path) -> anyhow::Result<String> {
    let source = checkout().join(format!("bench/mpi/{name}.c"));
    let program = dir.join(name);
    let mut command = match include {
        Some(include) => {
            let mut command = Command::new("cc");
            command.arg("-I").arg(include);
            command
        }
        None => Command::new("mpicc"),
    };
    command.args(["-O2", "-o"]).arg(&program).arg(&source);
    if include.is_some() {
        command.arg("-l:libmpi.so.40");
    }
    let output = command.arg("-lm").output().context("starting the compiler")?;
    ensure!(
        output.status.success(),
        "{name} cannot be compiled: install libopenmpi-dev, or say --include with the folder of its mpi.h, or leave it out \
         (--programs hpl)\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(program.display().to_string())
}

/// hpcc's input: it runs all of its programs; of a matrix of this size HPL takes by far the longest.
fn hpcc_input(seconds: f64) -> String {
    // 2/3 n^3 operations.
    let size = (seconds * HPL_FLOPS * 1.5).cbrt().round().max(200.0);
    let lines = [
        "HPLinpack benchmark input file".to_owned(),
        "two processes".to_owned(),
        "HPL.out      output file name (if any)".to_owned(),
        "8            device out (6=stdout,7=stderr,file)".to_owned(),
        "1            # of problems sizes (N)".to_owned(),
        format!("{size:<12} Ns"),
        "1            # of NBs".to_owned(),
        "80           NBs".to_owned(),
        "0            PMAP process mapping (0=Row-,1=Column-major)".to_owned(),
        "1            # of process grids (P x Q)".to_owned(),
        "1            Ps".to_owned(),
        format!("{RANKS:<12} Qs"),
        "16.0         threshold".to_owned(),
        "1            # of panel fact".to_owned(),
        "2            PFACTs (0=left, 1=Crout, 2=Right)".to_owned(),
        "1            # of recursive stopping criterium".to_owned(),
        "4            NBMINs (>= 1)".to_owned(),
        "1            # of panels in recursion".to_owned(),
        "2            NDIVs".to_owned(),
        "1            # of recursive panel fact.".to_owned(),
        "1            RFACTs (0=left, 1=Crout, 2=Right)".to_owned(),
        "1            # of broadcast".to_owned(),
        "1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)".to_owned(),
        "1            # of lookahead depth".to_owned(),
        "1            DEPTHs (>=0)".to_owned(),
        "2            SWAP (0=bin-exch,1=long,2=mix)".to_owned(),
        "64           swapping threshold".to_owned(),
        "0            L1 in (0=transposed,1=no-transposed) form".to_owned(),
        "0            U  in (0=transposed,1=no-transposed) form".to_owned(),
        "1            Equilibration (0=no,1=yes)".to_owned(),
        "8            memory alignment in double (> 0)".to_owned(),
    ];
    lines.join("\n") + "\n"
}
