//! Programs of the site that print `name value` lines, started for each sample or staying as a stream.
//!
//! - In: `[sources.exec.NAME]`, and what the programs print.
//! - Out: a group for each program; the sensors are the names that it prints.
//! - Never: a program with a capability, a file or the environment of the agent; one that outlives its deadline; a value of a run that failed.
//!
//! The readers of one source share a thread. The first read that is due starts all programs of its interval, so that a slow one delays the others' reads
//! but not their runs.

pub(crate) mod child;
pub(crate) mod config;
mod program;

use std::sync::Arc;
use std::time::{Duration, Instant};

use wholegrain_model::config::{ConfigError, Section};

use self::program::{ExecReader, Program};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "exec",
    summary: "programs of the site that print lines with name and value",
    configure,
    jobs: None,
};

/// How long a discovery waits for programs that it started: 1 s. Slower ones are asked again by the next one.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between looks at programs in a discovery.
const LOOK_EVERY: Duration = Duration::from_millis(5);

fn configure(section: &Section, _context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, programs) = config::read(section)?;
    let programs = programs.into_iter().map(|settings| Program::new(settings, options.clone())).collect();
    Ok(Box::new(ExecSource { programs, unseen: Vec::new() }))
}

struct ExecSource {
    programs: Arc<[Program]>,
    unseen: Vec<&'static str>,
}

impl Source for ExecSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let until = Instant::now() + DISCOVERY_TIMEOUT;
        let mut waiting: Vec<&Program> = self.programs.iter().filter(|program| !program.begin_discovery()).collect();
        while !waiting.is_empty() && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
            waiting.retain(|program| !program.is_discovered());
        }
        self.unseen.clear();
        for program in waiting {
            report(format!("exec: {} has printed nothing yet; its sensors are not known", program.name()));
            // The agent looks again soon.
            self.unseen.push(SOURCE.name);
        }
        let programs = self.programs.iter().enumerate();
        let plans = programs.filter_map(|(index, program)| {
            let (sensors, table) = program.learn(report)?;
            let reader = Box::new(ExecReader::new(self.programs.clone(), index, table));
            let (name, timing) = (format!("exec/{}", program.name()), program.timing());
            Some(GroupPlan { name, sensors, reader, timing, blocking: true })
        });
        plans.collect()
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}
