//! A monitor that runs, as far as all of others' are alike: processes, files and arguments, values, and samples that something counts.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Folder, Parts, Role, Running, parts};

/// Counts the samples that were made so far; `None` where that cannot be told now.
type Samples = Box<dyn Fn() -> Option<u64>>;

/// What was started.
pub struct Started {
    /// Its processes.
    pub parts: Parts,
    /// See [`Running::metrics`].
    pub metrics: u64,
    /// See [`Running::configured`].
    pub configured: String,
    interval: Duration,
    /// Since when samples are made, and what counts them; nothing where the monitor does not tell.
    counted: Option<(Instant, Samples)>,
}

/// Starts a monitor whose node's part sends to its server's: what of the two is wanted here, the server's first.
pub fn both(
    role: Role,
    interval: Duration,
    dir: &Path,
    server: impl FnOnce(&mut Started, &Folder) -> anyhow::Result<()>,
    node: impl FnOnce(&mut Started, &Folder) -> anyhow::Result<()>,
) -> anyhow::Result<Box<dyn Running>> {
    let folder = Folder::new(dir, role)?;
    let mut started = Started::new(interval);
    if folder.has_server() {
        server(&mut started, &folder)?;
    }
    if folder.has_node() {
        node(&mut started, &folder)?;
    }
    Ok(Box::new(started))
}

impl Started {
    /// Nothing yet.
    pub fn new(interval: Duration) -> Self {
        Self { parts: Parts::new(), metrics: 0, configured: String::new(), interval, counted: None }
    }

    /// Starts a process, and keeps how for [`Running::configured`].
    pub fn run(&mut self, name: &str, server: bool, command: &mut Command, log: &Path) -> anyhow::Result<()> {
        self.configured += &format!("# {command:?}\n");
        self.parts.start(name, server, command, log).map(drop)
    }

    /// Starts a process whose last argument is a configuration file of this text; its log lies beside that.
    pub fn run_with(
        &mut self,
        folder: &Folder,
        (name, server): (&str, bool),
        command: &mut Command,
        (config, text): (&Path, &str),
    ) -> anyhow::Result<()> {
        self.configured += &folder.write(config, text)?;
        self.run(name, server, command.arg(config), &config.with_extension("log"))
    }

    /// From `since` on there is a sample a period, which `samples` counts.
    pub fn counts(&mut self, since: Instant, samples: impl Fn() -> Option<u64> + 'static) {
        self.counted = Some((since, Box::new(samples)));
    }
}

impl Running for Started {
    fn metrics(&self) -> u64 {
        self.metrics
    }

    fn configured(&self) -> String {
        self.configured.clone()
    }

    fn processes(&self) -> Vec<(String, u32, bool)> {
        self.parts.list()
    }

    fn ticks(&self) -> Option<(u64, u64)> {
        let (since, samples) = self.counted.as_ref()?;
        Some(parts::ticks(samples()?, *since, self.interval))
    }

    fn stop(mut self: Box<Self>) {
        self.parts.stop();
    }
}
