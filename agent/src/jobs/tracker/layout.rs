//! Which directory is a job: from a path below a hierarchy's root to manager, id, owner and step. No I/O.
//!
//! Where each resource manager puts its jobs was read in its own sources and documentation; the tests have an example of each.

mod pattern;
#[cfg(test)]
mod tests;

pub use pattern::Pattern;

use wholegrain_model::job::JOB_ID_BYTES_MAX;
use wholegrain_model::name::{LEVEL_BYTES_MAX, sanitize_level};
use wholegrain_model::pattern::glob;

use super::TrackerConfig;

/// The most levels of a path that is looked at: deeper directories are never looked for.
pub const DEPTH_MAX: usize = 16;

/// The version of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One of several, with its own controllers.
    V1,
    /// The unified one.
    V2,
}

/// What a directory is to the tracker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    /// No job, and none below.
    Nothing,
    /// No job nor step itself, but some can be below.
    Above,
    /// A job, or a step of one.
    Job(Found),
}

/// A job or a step, as its path shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// What the records call the manager.
    pub manager: String,
    /// Which daemon of the manager, where several on one node have jobs: Slurm's node name, Flux's rank; often empty.
    pub instance: String,
    /// The id as the manager writes it, at most [`JOB_ID_BYTES_MAX`] bytes.
    pub job: String,
    /// What the level of its sensors' names is.
    pub level: String,
    /// Whose it is, where the path says so.
    pub uid: Option<u32>,
    /// The same by name.
    pub user: Option<String>,
    /// The path of the step below the job, such as `step_0/task_1`; empty for the job itself.
    pub step: String,
    /// Whether steps can be below.
    pub deeper: bool,
}

impl Found {
    fn new(manager: &str, instance: &str, job: &str) -> Self {
        let job = fit_id(job);
        let level = level_of(&job);
        Self { manager: manager.to_owned(), instance: instance.to_owned(), job, level, ..Self::default() }
    }
}

/// A resource manager whose layout is known.
pub struct Manager {
    /// Its name in the configuration and in records.
    pub name: &'static str,
    spot: fn(&[&str], Version, &[String]) -> Spot,
}

/// All of them, in the order in which they are asked.
pub const MANAGERS: &[Manager] = &[
    Manager { name: "slurm", spot: slurm },
    Manager { name: "oar", spot: oar },
    Manager { name: "pbs", spot: pbs },
    Manager { name: "flux", spot: flux },
    Manager { name: "systemd", spot: systemd },
];

/// The layouts of a configuration.
pub struct Layouts {
    managers: Vec<&'static Manager>,
    patterns: Vec<Pattern>,
    units: Vec<String>,
}

impl Layouts {
    /// Those that a checked configuration asks for.
    pub fn new(config: &TrackerConfig) -> Self {
        Self {
            managers: MANAGERS
                .iter()
                .filter(|manager| config.managers.iter().any(|name| name == manager.name))
                .collect(),
            patterns: config.patterns.iter().filter_map(|pattern| Pattern::new(pattern).ok()).collect(),
            units: config.units.clone(),
        }
    }

    /// What the directory at `path` (without a leading slash) is. The configuration's patterns come first.
    pub fn spot(&self, version: Version, path: &str) -> Spot {
        let levels: Vec<&str> = path.split('/').collect();
        if levels.len() > DEPTH_MAX || levels.iter().any(|level| level.is_empty()) {
            return Spot::Nothing;
        }
        let patterns = self.patterns.iter().map(|pattern| pattern.spot(path, &levels));
        let managers = self.managers.iter().map(|manager| (manager.spot)(&levels, version, &self.units));
        let mut above = false;
        for spot in patterns.chain(managers) {
            match spot {
                Spot::Job(found) => return Spot::Job(found),
                Spot::Above => above = true,
                Spot::Nothing => {}
            }
        }
        if above { Spot::Above } else { Spot::Nothing }
    }
}

/// An id of any length, cut to what a record takes; what is cut is told apart by a hash.
fn fit_id(id: &str) -> String {
    if id.len() <= JOB_ID_BYTES_MAX {
        return id.to_owned();
    }
    format!("{}-{:08x}", cut(id, JOB_ID_BYTES_MAX - 9), hash(id))
}

/// The level for an id: the id itself where that can stand in a name, else made fit and with a hash after it, so that two ids
/// that differ only in characters which a name cannot have do not meet, on any node and at any time.
pub fn level_of(id: &str) -> String {
    let level = sanitize_level(id);
    if level == id {
        return level;
    }
    format!("{}-{:08x}", cut(&level, LEVEL_BYTES_MAX - 9), hash(id))
}

fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// FNV-1a, 32 bits: the same on every node and in every version.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The levels after the slices at the beginning.
fn below_slices<'a, 'b>(levels: &'a [&'b str]) -> &'a [&'b str] {
    let slices = levels.iter().take_while(|level| level.ends_with(".slice")).count();
    &levels[slices..]
}

fn slurm(levels: &[&str], version: Version, _: &[String]) -> Spot {
    match version {
        Version::V1 => slurm_v1(levels),
        Version::V2 => slurm_v2(levels),
    }
}

/// `slurm[_<node>]/uid_<uid>/job_<id>/step_*/task_*`
fn slurm_v1(levels: &[&str]) -> Spot {
    let instance = match levels[0].strip_prefix("slurm") {
        Some("") => "",
        Some(rest) if rest.len() > 1 && rest.starts_with('_') => &rest[1..],
        _ => return Spot::Nothing,
    };
    let Some(uid) = levels.get(1) else { return Spot::Above };
    let Some(uid) = uid.strip_prefix("uid_").and_then(|uid| uid.parse().ok()) else { return Spot::Nothing };
    let Some(job) = levels.get(2) else { return Spot::Above };
    let Some(id) = slurm_id(job) else { return Spot::Nothing };
    let (step, deeper) = match levels[3..] {
        [] => (String::new(), true),
        [step] if step.starts_with("step_") => (step.to_owned(), true),
        [step, task] if step.starts_with("step_") && task.starts_with("task_") => (format!("{step}/{task}"), false),
        _ => return Spot::Nothing,
    };
    Spot::Job(Found { uid: Some(uid), step, deeper, ..Found::new("slurm", instance, id) })
}

/// `<slice>/[<node>_]slurmstepd.scope/{job_<id>,<SLUID>}/step_*/{slurm,user}/task_*`
fn slurm_v2(levels: &[&str]) -> Spot {
    let levels = below_slices(levels);
    let Some(scope) = levels.first() else { return Spot::Above };
    let instance = match scope.strip_suffix("slurmstepd.scope") {
        Some("") => "",
        Some(rest) if rest.len() > 1 && rest.ends_with('_') => &rest[..rest.len() - 1],
        _ => return Spot::Nothing,
    };
    let Some(job) = levels.get(1) else { return Spot::Above };
    let Some(id) = slurm_id(job) else { return Spot::Nothing };
    let (step, deeper) = match levels[2..] {
        [] => (String::new(), true),
        [step] if step.starts_with("step_") => (step.to_owned(), true),
        [step, "user"] if step.starts_with("step_") => return Spot::Above,
        [step, "user", task] if step.starts_with("step_") && task.starts_with("task_") => {
            (format!("{step}/{task}"), false)
        }
        _ => return Spot::Nothing,
    };
    Spot::Job(Found { step, deeper, ..Found::new("slurm", instance, id) })
}

/// The id in a directory's name: `job_<id>`, or a SLUID, `s` and 13 Crockford base-32 characters.
fn slurm_id(name: &str) -> Option<&str> {
    if let Some(id) = name.strip_prefix("job_") {
        return (is_number(id) || is_sluid(id)).then_some(id);
    }
    is_sluid(name).then_some(name)
}

fn is_sluid(name: &str) -> bool {
    let crockford = |byte: u8| byte.is_ascii_alphanumeric() && !b"ILOU".contains(&byte.to_ascii_uppercase());
    name.strip_prefix('s').is_some_and(|rest| rest.len() == 13 && rest.bytes().all(crockford))
}

/// OAR 2, `oar/<user>_<id>`; OAR 3, `oar.slice/oar-u<uid>.slice/oar-u<uid>-j<id>.slice/[…-t<T>.slice/]…-s<S>.scope`
fn oar(levels: &[&str], version: Version, _: &[String]) -> Spot {
    match (version, levels) {
        (Version::V1, ["oar"]) | (Version::V2, ["oar.slice"]) => Spot::Above,
        (Version::V1, ["oar", name]) => {
            // The user's own name may have a `_`.
            match name.rsplit_once('_') {
                Some((user, id)) if !user.is_empty() && is_number(id) => {
                    Spot::Job(Found { user: Some(user.to_owned()), ..Found::new("oar", "", id) })
                }
                _ => Spot::Nothing,
            }
        }
        (Version::V2, ["oar.slice", user, below @ ..]) => oar_3(user, below).unwrap_or(Spot::Nothing),
        _ => Spot::Nothing,
    }
}

fn oar_3(user: &str, below: &[&str]) -> Option<Spot> {
    let uid: u32 = user.strip_prefix("oar-u")?.strip_suffix(".slice")?.parse().ok()?;
    let Some((job, steps)) = below.split_first() else { return Some(Spot::Above) };
    let id = job.strip_prefix(&format!("oar-u{uid}-j"))?.strip_suffix(".slice")?;
    if !is_number(id) || steps.len() > 2 {
        return None;
    }
    let mut found = Found { uid: Some(uid), deeper: true, ..Found::new("oar", "", id) };
    if let Some(last) = steps.last() {
        // Names repeat what is above them: `oar-u1000-j42-t3-s1.scope`.
        let own = last.strip_prefix(&format!("oar-u{uid}-j{id}-"))?;
        let (own, deeper) = match own.strip_suffix(".slice") {
            Some(own) => (own, true),
            None => (own.strip_suffix(".scope")?, false),
        };
        let is_part = |part: &str| (part.starts_with('t') || part.starts_with('s')) && is_number(&part[1..]);
        if !own.split('-').all(is_part) {
            return None;
        }
        found.step = own.replace('-', "/");
        found.deeper = deeper && steps.len() < 2;
    }
    Some(Spot::Job(found))
}

/// `pbs_jobs.service/jobid/<full id>`
fn pbs(levels: &[&str], _: Version, _: &[String]) -> Spot {
    match levels {
        ["pbs_jobs.service"] | ["pbs_jobs.service", "jobid"] => Spot::Above,
        ["pbs_jobs.service", "jobid", id] => Spot::Job(Found::new("pbs", "", id)),
        _ => Spot::Nothing,
    }
}

/// The uid in `user@<uid>.service`.
fn user_service(level: &str) -> Option<u32> {
    level.strip_prefix("user@")?.strip_suffix(".service")?.parse().ok()
}

/// `…/user@<uid>.service/…/{imp-,}shell-<rank>-<id>.service`. The shell of a job of another user is started by the IMP, so that
/// only without it the instance's user is the job's.
fn flux(levels: &[&str], _: Version, _: &[String]) -> Spot {
    let levels = below_slices(levels);
    let Some((service, rest)) = levels.split_first() else { return Spot::Above };
    let Some(uid) = user_service(service) else { return Spot::Nothing };
    match below_slices(rest) {
        [] => Spot::Above,
        [unit] => flux_unit(unit, uid).map_or(Spot::Nothing, Spot::Job),
        _ => Spot::Nothing,
    }
}

fn flux_unit(unit: &str, uid: u32) -> Option<Found> {
    let name = unit.strip_suffix(".service")?;
    let (own, name) = match name.strip_prefix("imp-") {
        Some(name) => (false, name),
        None => (true, name),
    };
    let (rank, plain) = name.strip_prefix("shell-")?.split_once('-')?;
    let base58 = |byte: u8| byte.is_ascii_alphanumeric() && !b"0OIl".contains(&byte);
    let digits = plain.strip_prefix('f').filter(|digits| !digits.is_empty() && digits.bytes().all(base58))?;
    if !is_number(rank) {
        return None;
    }
    // A unit's name is ASCII; everywhere else Flux writes the letter with a hook. The level keeps what can be typed.
    let found = Found::new("flux", rank, &format!("\u{192}{digits}"));
    Some(Found { uid: own.then_some(uid), level: plain.to_owned(), ..found })
}

/// Units by name, in any slice and below any user's own manager.
fn systemd(levels: &[&str], _: Version, units: &[String]) -> Spot {
    let mut uid = None;
    for (index, level) in levels.iter().enumerate() {
        let last = index + 1 == levels.len();
        if !level.ends_with(".slice") && units.iter().any(|unit| glob(unit, level)) {
            return match last {
                true => Spot::Job(Found { uid, ..Found::new("systemd", "", level) }),
                false => Spot::Nothing,
            };
        }
        match user_service(level) {
            Some(user) => uid = Some(user),
            None if level.ends_with(".slice") => {}
            None => return Spot::Nothing,
        }
    }
    Spot::Above
}
