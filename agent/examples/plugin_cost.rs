//! What one read costs: of a source of the agent, of a plug-in within the agent, and of an isolated one, beside a bare loop that fills as many values.
//!
//! `cargo run --release -p wholegrain-agent --example plugin_cost`

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use wholegrain_agent::Config;
use wholegrain_agent::plugins::{self, PluginServices};
use wholegrain_model::config::Document;
use wholegrain_sources::{GroupPlan, Roots, Row, SOURCES};

/// Sensors of each group.
const SENSORS: usize = 100;
/// How long each is measured.
const TIME: Duration = Duration::from_secs(2);
/// Reads between two looks at the clock.
const READS: u32 = 100;

/// Nanoseconds of one call: the least of many rounds.
fn measure(mut work: impl FnMut()) -> f64 {
    let (begin, mut least) = (Instant::now(), f64::MAX);
    while begin.elapsed() < TIME {
        let round = Instant::now();
        (0..READS).for_each(|_| work());
        least = least.min(round.elapsed().as_nanos() as f64 / f64::from(READS));
    }
    least
}

fn read_cost(group: &mut GroupPlan) -> anyhow::Result<f64> {
    ensure!(group.sensors.len() == SENSORS, "{} sensors", group.sensors.len());
    let (mut values, mut gaps) = (vec![0; SENSORS], vec![0; SENSORS.div_ceil(64)]);
    let cost = measure(|| _ = group.reader.read(&mut Row::new(&mut values, &mut gaps)));
    ensure!(gaps.iter().all(|word| *word == 0), "the last read has gaps");
    Ok(cost)
}

/// Compiles the plug-in into a folder that the agent accepts.
fn compile(dir: &Path) -> anyhow::Result<()> {
    let (root, library) = (Path::new(env!("CARGO_MANIFEST_DIR")), dir.join("cost.so"));
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755))?;
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-shared", "-fPIC", "-I"]).arg(root.join("../sources/abi"));
    cc.arg(root.join("examples/plugin_cost.c")).arg("-o").arg(&library);
    ensure!(cc.status().context("cc")?.success(), "cc refuses the plug-in");
    std::fs::set_permissions(&library, PermissionsExt::from_mode(0o755))?;
    Ok(())
}

fn built_in() -> anyhow::Result<f64> {
    let text = format!("[sources.tester]\nsensors = {SENSORS}\nshape = \"counter\"\namplitude = 1\n");
    let tester = SOURCES.iter().find(|source| source.name == "tester").context("there is no source tester")?;
    let section = Document::new("cost.toml", &text).root().child("sources").child("tester");
    let mut source = (tester.configure)(&section, &Roots::default().into())?;
    read_cost(source.discover(&mut |_| ()).first_mut().context("no group")?)
}

fn plug_in(dir: &Path, isolate: bool) -> anyhow::Result<f64> {
    let text = format!("name = \"n\"\n[plugins]\ndir = \".\"\n[plugins.cost]\nisolate = {isolate}\n");
    let config = Config::parse(Path::new("cost.toml"), &text, dir)?;
    let services =
        PluginServices { counters: Default::default(), waker: None, progress: PluginServices::new_progress() };
    let mut source = plugins::start(&config.plugins.plugins[0], services)?;
    let mut groups = source.discover(&mut |line| eprintln!("{line}"));
    read_cost(groups.first_mut().context("no group")?)
}

fn compare() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    compile(dir.path())?;
    let (mut row, mut count) = (vec![0u64; SENSORS], 0);
    let bare = measure(|| {
        count += 1;
        row.iter_mut().enumerate().for_each(|(index, value)| *value = count + index as u64);
        std::hint::black_box(&mut row);
    });
    println!("one read of {SENSORS} sensors:");
    let print = |what: &str, cost: f64| println!("  {what:<24} {cost:>9.0} ns  {:>8.1} times the loop", cost / bare);
    print("a bare loop", bare);
    print("a source of the agent", built_in()?);
    print("a plug-in in the agent", plug_in(dir.path(), false)?);
    print("an isolated plug-in", plug_in(dir.path(), true)?);
    Ok(())
}

fn main() -> ExitCode {
    // An isolated plug-in is this program with another argument.
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(plugins::ARGUMENT) {
        return plugins::run_host(arguments.next().as_deref());
    }
    match compare() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
