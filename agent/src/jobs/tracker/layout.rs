//! Which directory is a job: from a path below a hierarchy's root to manager, id, owner and step, and to who must own each
//! directory on that path. No I/O.
//!
//! Where each resource manager puts its jobs was read in its own sources; `layout/verdicts.txt` has examples, real and forged.
//! Every layout begins at the hierarchy's root: users can make directories of any name below their own systemd manager.

mod pattern;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod verdicts;

use std::collections::BTreeMap;
use std::fmt;

pub use pattern::JobPathPattern;

use wholegrain_model::job::JOB_ID_BYTES_MAX;
use wholegrain_model::name::{LEVEL_BYTES_MAX, sanitize_level};
use wholegrain_model::pattern::glob;

use super::TrackerConfig;
use super::trust::{AllowedOwner, AllowedOwners};

/// The most levels of a path that is looked at: deeper directories are never looked for.
pub const DEPTH_MAX: usize = 16;

/// The version of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One of several, with its own controllers.
    V1,
    V2,
}

/// What a directory is to the tracker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryRole {
    /// No job, and none below.
    Nothing,
    /// No job nor step itself, but some can be below where the owners are as one of these asks for.
    Above(Vec<AllowedOwners>),
    /// A job, or a step of one, where the owners are as it asks for.
    Job(JobPath),
}

/// Who the path says that a job is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum PathOwner {
    /// It does not say. The id is the manager's, which gives it to one job at a time.
    #[default]
    Unspecified,
    /// The manager wrote a uid into the path.
    Uid(u32),
    /// The manager wrote a name into the path.
    Name(String),
    /// The directory lies below this user's own systemd manager, and its name, the job's id, is of the user's own choice.
    Own(u32),
}

impl PathOwner {
    /// Whether directories of these two owners can be of one job, if manager and id are the same.
    pub fn may_be(&self, other: &PathOwner) -> bool {
        let own = |owner: &PathOwner| matches!(owner, PathOwner::Own(_));
        self == other
            || (*self == PathOwner::Unspecified && !own(other))
            || (*other == PathOwner::Unspecified && !own(self))
    }

    /// The uid that it says.
    pub fn uid(&self) -> Option<u32> {
        match self {
            PathOwner::Uid(uid) | PathOwner::Own(uid) => Some(*uid),
            PathOwner::Unspecified | PathOwner::Name(_) => None,
        }
    }

    pub fn of_record(text: &str) -> Self {
        match text.split_once(':') {
            Some(("uid", uid)) => uid.parse().map_or(PathOwner::Unspecified, PathOwner::Uid),
            Some(("own", uid)) => uid.parse().map_or(PathOwner::Unspecified, PathOwner::Own),
            Some(("user", name)) => PathOwner::Name(name.to_owned()),
            _ => PathOwner::Unspecified,
        }
    }
}

/// As records have it.
impl fmt::Display for PathOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathOwner::Unspecified => Ok(()),
            PathOwner::Uid(uid) => write!(f, "uid:{uid}"),
            PathOwner::Name(name) => write!(f, "user:{name}"),
            PathOwner::Own(uid) => write!(f, "own:{uid}"),
        }
    }
}

/// A job or a step, as its path shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobPath {
    /// What the records call the manager.
    pub manager: String,
    /// Which daemon of the manager, where several on one node have jobs: Slurm's node name, Flux's rank; often empty.
    pub instance: String,
    /// The id as the manager writes it, at most [`JOB_ID_BYTES_MAX`] bytes.
    pub job: String,
    /// What the level of its sensors' names is.
    pub level: String,
    /// Who the path says it is of.
    pub owner: PathOwner,
    /// Whose processes they are, where the layout says so.
    pub uid: Option<u32>,
    /// The same by name.
    pub user: Option<String>,
    /// The account of the manager's own daemons, whose processes in the job do not say whose the job is.
    pub account: Option<u32>,
    /// Who must own the directories on the path.
    pub owners: AllowedOwners,
    /// The path of the step below the job, such as `step_0/task_1`; empty for the job itself.
    pub step: String,
    /// Whether steps can be below.
    pub deeper: bool,
}

impl JobPath {
    fn new(manager: &str, instance: &str, job: &str, owners: AllowedOwners) -> Self {
        let job = fit_id(job);
        let level = level_of(&job);
        Self { manager: manager.to_owned(), instance: instance.to_owned(), job, level, owners, ..Self::default() }
    }

    /// What the path says of the owner. A level of a user's own choice never is another's: it ends with the uid.
    fn of(mut self, owner: PathOwner) -> Self {
        if let PathOwner::Own(uid) = owner {
            self.level = level_for(&self.level, &format!("-u{uid}"));
        }
        self.uid = owner.uid();
        if let PathOwner::Name(name) = &owner {
            self.user = Some(name.clone());
        }
        self.owner = owner;
        self
    }
}

/// What differs between sites, resolved.
struct SiteLayout {
    flux: Option<u32>,
    oar: Option<u32>,
    pbs: Vec<String>,
    /// Paths of the slices that Slurm's scopes are in.
    slices: Vec<Vec<String>>,
    nodes: Vec<String>,
    units: Vec<String>,
}

/// A resource manager whose layout is known.
pub struct ResourceManager {
    /// Its name in the configuration and in records.
    pub name: &'static str,
    spot: fn(&[&str], CgroupVersion, &SiteLayout) -> DirectoryRole,
}

/// All of them, in the order in which they are asked.
pub const MANAGERS: &[ResourceManager] = &[
    ResourceManager { name: "slurm", spot: slurm },
    ResourceManager { name: "oar", spot: oar },
    ResourceManager { name: "pbs", spot: pbs },
    ResourceManager { name: "flux", spot: flux },
    ResourceManager { name: "systemd", spot: systemd },
];

/// The layouts of a configuration.
pub struct Layouts {
    managers: Vec<&'static ResourceManager>,
    patterns: Vec<(JobPathPattern, Option<u32>)>,
    site: SiteLayout,
}

impl Layouts {
    /// Those that a checked configuration asks for; `accounts` are the uids of [`TrackerConfig::accounts`] that there are.
    pub fn new(config: &TrackerConfig, accounts: &BTreeMap<String, u32>) -> Self {
        let account = |name: &str| accounts.get(name).copied();
        let compile = |raw| Some((JobPathPattern::new(raw).ok()?, raw.owner.as_deref().and_then(account)));
        Self {
            managers: MANAGERS
                .iter()
                .filter(|manager| config.managers.iter().any(|name| name == manager.name))
                .collect(),
            patterns: config.patterns.iter().filter_map(compile).collect(),
            site: SiteLayout {
                flux: account(&config.flux_user),
                oar: account(&config.oar_user),
                pbs: config.pbs_prefixes.clone(),
                slices: config.slurm_slices.iter().map(|slice| slice_path(slice)).collect(),
                nodes: config.slurm_nodes.clone(),
                units: config.units.clone(),
            },
        }
    }

    /// What the directory at `path` (without a leading slash) is. The configuration's patterns come first.
    pub fn spot(&self, version: CgroupVersion, path: &str) -> DirectoryRole {
        let levels: Vec<&str> = path.split('/').collect();
        if levels.len() > DEPTH_MAX || levels.iter().any(|level| level.is_empty()) {
            return DirectoryRole::Nothing;
        }
        let patterns = self.patterns.iter().map(|(pattern, account)| pattern.spot(path, &levels, *account));
        let managers = self.managers.iter().map(|manager| (manager.spot)(&levels, version, &self.site));
        let mut above = Vec::new();
        for spot in patterns.chain(managers) {
            match spot {
                DirectoryRole::Job(found) => return DirectoryRole::Job(found),
                DirectoryRole::Above(owners) => {
                    for owners in owners {
                        if !above.contains(&owners) {
                            above.push(owners);
                        }
                    }
                }
                DirectoryRole::Nothing => {}
            }
        }
        if above.is_empty() { DirectoryRole::Nothing } else { DirectoryRole::Above(above) }
    }
}

/// The path of a slice, whose name has the names of those above it: `a-b.slice` lies in `a.slice`. Of the root slice it is empty.
fn slice_path(slice: &str) -> Vec<String> {
    let name = slice.strip_suffix(".slice").unwrap_or(slice);
    if name.is_empty() || name == "-" {
        return Vec::new();
    }
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    ends.map(|end| format!("{}.slice", &name[..end])).collect()
}

/// What no user but root may have made.
fn roots(levels: &[&str]) -> AllowedOwners {
    vec![AllowedOwner::Root; levels.len()]
}

/// The same but for the last directory, which root has made and may have given to somebody.
fn given(levels: &[&str]) -> AllowedOwners {
    let mut owners = roots(levels);
    if let Some(last) = owners.last_mut() {
        *last = AllowedOwner::Anyone;
    }
    owners
}

fn above(owners: AllowedOwners) -> DirectoryRole {
    DirectoryRole::Above(vec![owners])
}

/// The user whose slice a path leads through, and whether into what that user's own systemd manager has made.
fn user_of(levels: &[&str]) -> Option<(u32, bool)> {
    let ["user.slice", slice, below @ ..] = levels else { return None };
    let uid = decimal(slice.strip_prefix("user-")?.strip_suffix(".slice")?)?;
    let own = matches!(below, [service, _, ..] if user_service(service) == Some(uid));
    Some((uid, own))
}

/// Who may own the directories on any path: root, an account beside it, and below `user.slice/user-U.slice/user@U.service` U.
fn usual(levels: &[&str], account: Option<u32>) -> AllowedOwners {
    let mut owners = vec![account.map_or(AllowedOwner::Root, AllowedOwner::Or); levels.len()];
    if let Some((uid, _)) = user_of(levels)
        && levels.get(2).is_some_and(|service| user_service(service) == Some(uid))
    {
        owners[..2].fill(AllowedOwner::Root);
        owners[2..].fill(AllowedOwner::Or(uid));
    }
    owners
}

/// Whom a path is of by itself.
fn usual_owner(levels: &[&str]) -> PathOwner {
    match user_of(levels) {
        Some((uid, true)) => PathOwner::Own(uid),
        Some((uid, false)) => PathOwner::Uid(uid),
        None => PathOwner::Unspecified,
    }
}

/// An id of any length, cut to what a record takes; a hash keeps cut ids distinct.
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

/// A level with something after it, which stays whole.
fn level_for(level: &str, after: &str) -> String {
    let room = LEVEL_BYTES_MAX - after.len();
    match level.len() <= room {
        true => format!("{level}{after}"),
        false => format!("{}-{:08x}{after}", cut(level, room - 9), hash(level)),
    }
}

fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// FNV-1a, 32 bits: the same on every node and in every version.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A plain decimal number, without a sign and leading zeros.
fn is_number(text: &str) -> bool {
    is_digits(text) && text.len() <= 20 && (text == "0" || !text.starts_with('0'))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn decimal(text: &str) -> Option<u32> {
    is_number(text).then(|| text.parse().ok())?
}

fn slurm(levels: &[&str], version: CgroupVersion, site: &SiteLayout) -> DirectoryRole {
    match version {
        CgroupVersion::V1 => slurm_v1(levels, site),
        CgroupVersion::V2 => slurm_v2(levels, site),
    }
}

/// Whether a node's name, which is empty where there is one daemon, is one of Slurm's here.
fn is_node(name: &str, site: &SiteLayout) -> bool {
    site.nodes.iter().any(|node| glob(node, name))
}

/// `slurm[_<node>]/uid_<uid>/job_<id>/step_*/task_*`. Up to 22.05 a step's directory is the user's: nothing below is a task then.
fn slurm_v1(levels: &[&str], site: &SiteLayout) -> DirectoryRole {
    let instance = match levels[0].strip_prefix("slurm") {
        Some("") => "",
        Some(rest) if rest.len() > 1 && rest.starts_with('_') && is_node(&rest[1..], site) => &rest[1..],
        _ => return DirectoryRole::Nothing,
    };
    let Some(uid) = levels.get(1) else { return above(roots(levels)) };
    let Some(uid) = uid.strip_prefix("uid_").and_then(decimal) else { return DirectoryRole::Nothing };
    let Some(job) = levels.get(2) else { return above(roots(levels)) };
    let Some(id) = job.strip_prefix("job_").filter(|id| is_number(id)) else { return DirectoryRole::Nothing };
    let (step, deeper, owners) = match levels[3..] {
        [] => (String::new(), true, roots(levels)),
        [step] if step.starts_with("step_") => (step.to_owned(), true, given(levels)),
        [step, task] if step.starts_with("step_") && task.starts_with("task_") => {
            (format!("{step}/{task}"), false, given(levels))
        }
        _ => return DirectoryRole::Nothing,
    };
    DirectoryRole::Job(JobPath { step, deeper, ..JobPath::new("slurm", instance, id, owners).of(PathOwner::Uid(uid)) })
}

/// `<slice>/[<node>_]slurmstepd.scope/{job_<id>,<SLUID>}/step_*/{slurm,user}/task_*`. In 22.05 a task's directory is the user's.
fn slurm_v2(whole: &[&str], site: &SiteLayout) -> DirectoryRole {
    let mut is_above = false;
    for slice in &site.slices {
        let same = slice.iter().zip(whole).take_while(|(slice, level)| slice == *level).count();
        if same == slice.len() && whole.len() > same {
            match slurm_scope(whole, &whole[same..], site) {
                DirectoryRole::Nothing => {}
                spot => return spot,
            }
        }
        is_above |= same == whole.len();
    }
    if is_above { above(roots(whole)) } else { DirectoryRole::Nothing }
}

fn slurm_scope(whole: &[&str], levels: &[&str], site: &SiteLayout) -> DirectoryRole {
    let instance = match levels[0].strip_suffix("slurmstepd.scope") {
        Some("") => "",
        Some(rest) if rest.len() > 1 && rest.ends_with('_') && is_node(&rest[..rest.len() - 1], site) => {
            &rest[..rest.len() - 1]
        }
        _ => return DirectoryRole::Nothing,
    };
    let Some(job) = levels.get(1) else { return above(roots(whole)) };
    let id = job.strip_prefix("job_").filter(|id| is_number(id)).or_else(|| is_sluid(job).then_some(*job));
    let Some(id) = id else { return DirectoryRole::Nothing };
    let (step, deeper, owners) = match levels[2..] {
        [] => (String::new(), true, roots(whole)),
        [step] if step.starts_with("step_") => (step.to_owned(), true, roots(whole)),
        [step, "user"] if step.starts_with("step_") => return above(roots(whole)),
        [step, "user", task] if step.starts_with("step_") && task.starts_with("task_") => {
            (format!("{step}/{task}"), false, given(whole))
        }
        _ => return DirectoryRole::Nothing,
    };
    DirectoryRole::Job(JobPath { step, deeper, ..JobPath::new("slurm", instance, id, owners) })
}

/// `s`, a hexadecimal digit of the cluster's number, and 12 Crockford base-32 digits, in capitals.
fn is_sluid(name: &str) -> bool {
    let crockford = |byte: u8| (byte.is_ascii_digit() || byte.is_ascii_uppercase()) && !b"ILOU".contains(&byte);
    let cluster = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
    let digits = name.strip_prefix('s').map(str::as_bytes);
    digits.is_some_and(|digits| {
        digits.len() == 13 && cluster(digits[0]) && digits[1..].iter().all(|byte| crockford(*byte))
    })
}

/// OAR 2, `oar/<user>_<id>`, whose directories are its account's; OAR 3, in the unified hierarchy,
/// `oar.slice/oar-u<uid>.slice/oar-u<uid>-j<id>.slice/[…-t<T>.slice/]…-p<P>.scope`.
fn oar(levels: &[&str], version: CgroupVersion, site: &SiteLayout) -> DirectoryRole {
    match (version, levels) {
        (CgroupVersion::V1, ["oar"]) => above(usual(levels, site.oar)),
        (CgroupVersion::V1, ["oar", name]) => {
            // The user's own name may have a `_`.
            match name.rsplit_once('_') {
                Some((user, id)) if !user.is_empty() && is_number(id) => {
                    let owners = usual(levels, site.oar);
                    DirectoryRole::Job(JobPath {
                        account: site.oar,
                        ..JobPath::new("oar", "", id, owners).of(PathOwner::Name(user.to_owned()))
                    })
                }
                _ => DirectoryRole::Nothing,
            }
        }
        (CgroupVersion::V2, ["oar.slice"]) => above(roots(levels)),
        (CgroupVersion::V2, ["oar.slice", user, below @ ..]) => {
            oar_3(levels, user, below).unwrap_or(DirectoryRole::Nothing)
        }
        _ => DirectoryRole::Nothing,
    }
}

fn oar_3(whole: &[&str], user: &str, below: &[&str]) -> Option<DirectoryRole> {
    let uid = decimal(user.strip_prefix("oar-u")?.strip_suffix(".slice")?)?;
    let Some((job, steps)) = below.split_first() else { return Some(above(roots(whole))) };
    let id = job.strip_prefix(&format!("oar-u{uid}-j"))?.strip_suffix(".slice")?;
    if !is_number(id) || steps.len() > 2 {
        return None;
    }
    let mut found = JobPath { deeper: true, ..JobPath::new("oar", "", id, roots(whole)).of(PathOwner::Uid(uid)) };
    if let Some(last) = steps.last() {
        // Names repeat what is above them: `oar-u1000-j42-t3-p1.scope`.
        let own = last.strip_prefix(&format!("oar-u{uid}-j{id}-"))?;
        let (own, deeper) = match own.strip_suffix(".slice") {
            Some(own) => (own, true),
            None => (own.strip_suffix(".scope")?, false),
        };
        let is_part = |part: &str| part.strip_prefix(['t', 'p']).is_some_and(is_digits);
        if !own.split('-').all(is_part) {
            return None;
        }
        found.step = own.replace('-', "/");
        found.deeper = deeper && steps.len() < 2;
    }
    Some(DirectoryRole::Job(found))
}

/// `<prefix>.service/jobid/<full id>`; version 19 `<prefix>.slice/<prefix>-<escaped full id>.slice`; version 18 `<prefix>/<full id>`.
fn pbs(levels: &[&str], _: CgroupVersion, site: &SiteLayout) -> DirectoryRole {
    let found = |id: &str| match id.starts_with(|c: char| c.is_ascii_digit()) && !id.ends_with(".orphan") {
        true => DirectoryRole::Job(JobPath::new("pbs", "", id, roots(levels))),
        false => DirectoryRole::Nothing,
    };
    for prefix in &site.pbs {
        let Some(kind) = levels[0].strip_prefix(prefix.as_str()) else { continue };
        match (kind, &levels[1..]) {
            (".service" | ".slice" | "", []) | (".service", ["jobid"]) => return above(roots(levels)),
            (".service", ["jobid", id]) | ("", [id]) => return found(id),
            (".slice", [slice]) => {
                let id = slice.strip_prefix(prefix.as_str()).and_then(|rest| rest.strip_prefix('-'));
                let id = id.and_then(|id| unescape(id.strip_suffix(".slice")?));
                return id.map_or(DirectoryRole::Nothing, |id| found(&id));
            }
            _ => {}
        }
    }
    DirectoryRole::Nothing
}

/// systemd's escapes in a unit's name: `\x2d` for `-`. A `-` that stands for itself is a slice of another name.
fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split("\\x");
    let mut plain = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let code = part.get(..2).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        plain.push(u8::from_str_radix(code, 16).ok()?);
        plain.extend(part.get(2..)?.as_bytes());
    }
    if text.contains('-') { None } else { String::from_utf8(plain).ok() }
}

/// The uid in `user@<uid>.service`.
fn user_service(level: &str) -> Option<u32> {
    decimal(level.strip_prefix("user@")?.strip_suffix(".service")?)
}

/// `user.slice/user-F.slice/user@F.service/[app.slice/]{imp-,}shell-<rank>-<id>.service` of the account F that Flux runs as, and
/// of no other user. The shell of a job of another user is started by the IMP, so that only without it the job is F's own.
fn flux(levels: &[&str], _: CgroupVersion, site: &SiteLayout) -> DirectoryRole {
    let Some(uid) = site.flux else { return DirectoryRole::Nothing };
    let (slice, service) = (format!("user-{uid}.slice"), format!("user@{uid}.service"));
    let expected = ["user.slice", &slice, &service, "app.slice"];
    let same = expected.iter().zip(levels).take_while(|(expected, level)| *expected == *level).count();
    match levels.len() - same {
        0 => above(usual(levels, None)),
        1 if same >= 3 => flux_unit(levels, levels[same], uid).map_or(DirectoryRole::Nothing, DirectoryRole::Job),
        _ => DirectoryRole::Nothing,
    }
}

fn flux_unit(levels: &[&str], unit: &str, uid: u32) -> Option<JobPath> {
    let name = unit.strip_suffix(".service")?;
    let (own, name) = match name.strip_prefix("imp-") {
        Some(name) => (false, name),
        None => (true, name),
    };
    let (rank, plain) = name.strip_prefix("shell-")?.split_once('-')?;
    let base58 = |byte: u8| byte.is_ascii_alphanumeric() && !b"0OIl".contains(&byte);
    let digits =
        plain.strip_prefix('f').filter(|digits| (1..=11).contains(&digits.len()) && digits.bytes().all(base58))?;
    if !is_number(rank) {
        return None;
    }
    // A unit's name is ASCII; everywhere else Flux writes the letter with a hook. The level keeps what can be typed.
    let found = JobPath::new("flux", rank, &format!("\u{192}{digits}"), usual(levels, None));
    let account = (!own).then_some(uid);
    Some(JobPath { uid: own.then_some(uid), level: plain.to_owned(), account, ..found })
}

/// Units by name, in any slice and below any user's own manager, where they are that user's.
fn systemd(levels: &[&str], _: CgroupVersion, site: &SiteLayout) -> DirectoryRole {
    let owner = usual_owner(levels);
    for (index, level) in levels.iter().enumerate() {
        let last = index + 1 == levels.len();
        if !level.ends_with(".slice") && site.units.iter().any(|unit| glob(unit, level)) {
            let owners = if matches!(owner, PathOwner::Own(_)) { usual(levels, None) } else { given(levels) };
            return match last {
                true => DirectoryRole::Job(JobPath::new("systemd", "", level, owners).of(owner)),
                false => DirectoryRole::Nothing,
            };
        }
        let is_manager = || index == 2 && user_of(levels).is_some_and(|(uid, _)| user_service(level) == Some(uid));
        if !level.ends_with(".slice") && !is_manager() {
            return DirectoryRole::Nothing;
        }
    }
    above(usual(levels, None))
}
