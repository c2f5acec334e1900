//! The Python package: installed with `pip install ./python`, its types checked, its tests, README and case studies run against real servers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use wholegrain_testing::cgroups::{Cgroups, links};
use wholegrain_testing::facility::{Replay, replay};
use wholegrain_testing::jobs::JobSite;
use wholegrain_testing::{Site, checkout};

/// The package in its own virtual environment, with the dependencies of the tests' environment.
struct Installed {
    folder: tempfile::TempDir,
}

fn tests_python() -> PathBuf {
    let python = checkout().join(".venv/bin/python");
    assert!(python.exists(), "{} is missing: `make prepare` installs it", python.display());
    python
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

impl Installed {
    /// Builds and installs without a network: build and run dependencies are among the tests' packages.
    fn get() -> &'static Self {
        static INSTALLED: OnceLock<Installed> = OnceLock::new();
        INSTALLED.get_or_init(|| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (source, wheels, fresh) =
                (folder.path().join("source"), folder.path().join("wheels"), folder.path().join("fresh"));
            // The build leaves files beside the sources, so that it uses a copy.
            run(Command::new("cp").arg("-r").arg(checkout().join("python")).arg(&source));
            let pip = |arguments: &[&str]| {
                let mut command = Command::new(tests_python());
                command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(arguments);
                command
            };
            run(pip(&["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]).arg(&wheels).arg(&source));
            run(Command::new(tests_python()).args(["-m", "venv"]).arg(&fresh));
            let wheel = fs::read_dir(&wheels).expect("wheels").flatten().next().expect("a wheel").path();
            let python = fresh.join("bin/python");
            run(pip(&["--python"]).arg(&python).args(["install", "--no-deps", "--no-index"]).arg(&wheel));
            let site = |python: &Path| {
                let ask = "import sysconfig; print(sysconfig.get_path('purelib'))";
                run(Command::new(python).args(["-c", ask])).trim().to_owned()
            };
            fs::write(Path::new(&site(&python)).join("lent.pth"), site(&tests_python()))
                .expect("a writable environment");
            Installed { folder }
        })
    }

    /// Its interpreter, in a directory without sources.
    fn python(&self) -> Command {
        let mut command = Command::new(self.folder.path().join("fresh/bin/python"));
        command.current_dir(self.folder.path()).env_remove("PYTHONPATH").env("MPLBACKEND", "Agg");
        command
    }
}

/// A server that seals often, so that readings are soon in blocks.
fn site() -> Site {
    let site = Site::new();
    site.set("server/server.toml", "store", "seal_after", "\"200ms\"");
    site
}

fn for_site(command: &mut Command, site: &Site) {
    command.env("WHOLEGRAIN_CLIENT", site.path("client.toml")).env("WHOLEGRAIN_STORE", site.path("server/store"));
}

#[test]
fn the_package_is_installed_with_types_and_depends_on_pyarrow_only() {
    let installed = Installed::get();
    let ask = "import importlib.metadata as m, pathlib, wholegrain; \
               print(wholegrain.__version__ == m.version('wholegrain'), (pathlib.Path(wholegrain.__file__).parent / 'py.typed').exists(), \
               [r for r in m.requires('wholegrain') if 'extra' not in r], '/fresh/' in wholegrain.__file__)";
    assert_eq!(run(installed.python().args(["-c", ask])).trim(), "True True ['pyarrow>=17'] True");
    // An import loads none of the optional dependencies, nor the package for marks of jobs, which has another name.
    let ask = "import sys, wholegrain; print([m for m in ('pandas', 'polars', 'matplotlib', 'numpy', 'wholegrain_runtime') if m in sys.modules])";
    let loaded = run(installed.python().args(["-c", ask]));
    assert!(
        !["pandas", "polars", "matplotlib", "wholegrain_runtime"].iter().any(|name| loaded.contains(name)),
        "{loaded}"
    );
}

#[test]
fn its_types_are_checked() {
    let mut command = Command::new(tests_python());
    command.args(["-m", "mypy", "--strict", "--no-incremental", "wholegrain", "tests"]);
    println!("{}", run(command.current_dir(checkout().join("python"))));
}

#[test]
fn its_tests_pass_against_a_server() {
    let site = site();
    let _server = site.start_server();
    println!("{}", run(&mut pytest(&site, "")));
}

/// Runs the package's tests in a file, or all of them.
fn pytest(site: &Site, file: &str) -> Command {
    let mut command = Installed::get().python();
    for_site(&mut command, site);
    command.args(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--durations=5", "-c"]);
    command.arg(checkout().join("python/pyproject.toml")).arg(checkout().join("python/tests").join(file));
    command
}

#[test]
fn heat_removal_is_about_nine_tenths() {
    let site = site();
    let _server = site.start_server();
    let token = fs::read_to_string(site.path("token")).expect("the token");
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs() as i64;
    let what = Replay { seed: 4711, nodes: 6, from_s: now_s - 86_400, to_s: now_s, every_s: 30 };
    println!("seed {}", what.seed);
    let count = replay(&format!("https://localhost:{}", site.http_port), &site.path("ca.pem"), token.trim(), &what);
    assert!(count > 30_000, "{count}");
    let plots = site.path("plots");
    let mut command = Installed::get().python();
    for_site(&mut command, &site);
    let script = checkout().join("python/examples/heat_removal.py");
    let said = run(command.arg(script).args(["--start=-1d", "--out"]).arg(&plots));
    println!("{said}");
    let number = |after: &str| -> f64 {
        let rest = said.split(after).nth(1).unwrap_or_else(|| panic!("it does not say {after:?}"));
        rest.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
    };
    let mean = number("mean heat removal: ");
    assert!((88.0..93.0).contains(&mean), "mean {mean} %");
    // The model loses a quarter of a percentage point for each kelvin.
    let slope = number("per kelvin at the inlet: ");
    assert!((-0.5..-0.1).contains(&slope), "slope {slope}");
    assert!(number("windows: ") > 100.0);
    are_pictures(&plots, &["heat_removal_time.png", "heat_removal_inlet.png"]);
}

#[test]
fn applications_differ_in_their_ratio() {
    if let Some(why) = Cgroups::missing() {
        println!("NOT TESTED: {why}");
        return;
    }
    let cgroups = Cgroups::new();
    let jobs = JobSite::new(&cgroups.root());
    let rule = "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"100ms\"\n";
    jobs.configure(rule, "[sources.cgroup]\n[sources.perf]\n[sources.tasks]\n");
    let _server = jobs.site.start_server();
    let _agent = jobs.start();
    let plots = jobs.site.path("plots");
    let mut command = Installed::get().python();
    for_site(&mut command, &jobs.site);
    let hierarchies = links(&cgroups.root()).expect("the test's own hierarchies");
    command.arg(checkout().join("python/examples/application_ratio.py"));
    command.args(["--run", "--seconds", "4", "--hierarchies"]).arg(hierarchies).arg("--out").arg(&plots);
    let said = run(&mut command);
    println!("{said}");
    let median = |ratio: &str, name: &str| -> f64 {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("{ratio}: {name} ")));
        let line = line.unwrap_or_else(|| panic!("nothing is said of {ratio} of {name}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let samples: u64 = words[0].parse().expect("a number of samples");
        assert!(samples >= 5, "{name}: {samples} samples");
        words[3].trim_end_matches(',').parse().expect("a median")
    };
    // Allocation causes page faults, communication causes context switches; matrix products in the caches cause almost none.
    for (ratio, many) in
        [("perf/page-faults per cpu/usage", "allocate"), ("perf/context-switches per cpu/usage", "converse")]
    {
        let (many, few) = (median(ratio, many), median(ratio, "multiply"));
        assert!(many > 1_000.0 && many > 10.0 * few, "{ratio}: {many} and {few}");
    }
    are_pictures(&plots, &["application_ratio.png", "job_multiply.png"]);
    // Queries the jobs of the case study in several ways.
    let job = said.split("running allocate as job ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a job");
    let mut command = pytest(&jobs.site, "test_jobs.py");
    println!("{}", run(command.env("WHOLEGRAIN_JOB", job)));
}

#[track_caller]
fn are_pictures(folder: &Path, names: &[&str]) {
    for name in names {
        let bytes = fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 10_000, "{name}: {} bytes", bytes.len());
    }
}
