//! Finds jobs in the paths of directories: manager, id, owner and step, and the allowed owner of each directory on the path. No I/O.
//!
//! The layouts were read in the sources of the resource managers; `layout/verdicts.txt` has real and forged examples. Every layout begins at the
//! hierarchy's root, because users can create directories of any name below their own systemd manager.

mod path;
mod pattern;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod verdicts;

use std::collections::BTreeMap;

pub use path::{CgroupVersion, DirectoryRole, JobPath, PathOwner, level_of};
pub use pattern::{JobPathPattern, RawPattern};

use wholegrain_model::pattern::glob;

use self::path::{decimal, is_digits, is_number, user_of, user_service, usual, usual_owner};
use super::config::TrackerConfig;
use super::trust::{AllowedOwner, AllowedOwners};

/// The deepest path of a job, in levels; deeper directories are not visited.
pub const DEPTH_MAX: usize = 16;

/// The settings that differ between sites, resolved.
struct SiteLayout {
    flux: Option<u32>,
    oar: Option<u32>,
    pbs: Vec<String>,
    /// Paths of the slices of Slurm's scopes.
    slices: Vec<Vec<String>>,
    nodes: Vec<String>,
    units: Vec<String>,
}

/// A resource manager with a known layout.
pub struct ResourceManager {
    /// Its name in the configuration and in records.
    pub name: &'static str,
    role: fn(&[&str], CgroupVersion, &SiteLayout) -> DirectoryRole,
}

/// All of them, in the order in which they are tried.
pub const MANAGERS: &[ResourceManager] = &[
    ResourceManager { name: "slurm", role: slurm },
    ResourceManager { name: "oar", role: oar },
    ResourceManager { name: "pbs", role: pbs },
    ResourceManager { name: "flux", role: flux },
    ResourceManager { name: UNITS, role: systemd },
];
/// The manager of any units, the last one.
const UNITS: &str = "systemd";

/// The layouts of a configuration.
pub struct Layouts {
    managers: Vec<&'static ResourceManager>,
    patterns: Vec<(JobPathPattern, Option<u32>)>,
    site: SiteLayout,
}

impl Layouts {
    /// The layouts of a checked configuration; `accounts` are the known uids of [`TrackerConfig::accounts`].
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

    /// The role of the directory at `path` (without a leading slash). The configuration's patterns come first. A unit that is above the jobs of a pattern
    /// or of another manager, as `slurmstepd.scope` is, is no job of systemd.
    pub fn role_of(&self, version: CgroupVersion, path: &str) -> DirectoryRole {
        let levels: Vec<&str> = path.split('/').collect();
        if levels.len() > DEPTH_MAX || levels.iter().any(|level| level.is_empty()) {
            return DirectoryRole::Nothing;
        }
        let patterns = self.patterns.iter().map(|(pattern, account)| pattern.role_of(path, &levels, *account));
        let managers = self.managers.iter().map(|manager| (manager.role)(&levels, version, &self.site));
        let mut above = Vec::new();
        for role in patterns.chain(managers) {
            match role {
                DirectoryRole::Job(found) if above.is_empty() || found.manager != UNITS => {
                    return DirectoryRole::Job(found);
                }
                DirectoryRole::Job(_) => {}
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

/// The path of a slice, whose name contains the names of its parents: `a-b.slice` is in `a.slice`. The root slice has an empty path.
fn slice_path(slice: &str) -> Vec<String> {
    let name = slice.strip_suffix(".slice").unwrap_or(slice);
    if name.is_empty() || name == "-" {
        return Vec::new();
    }
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    ends.map(|end| format!("{}.slice", &name[..end])).collect()
}

/// Only root may own each directory.
fn roots(levels: &[&str]) -> AllowedOwners {
    vec![AllowedOwner::Root; levels.len()]
}

/// Only root may own each directory except the last one, which root may have given to a user.
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

fn slurm(levels: &[&str], version: CgroupVersion, site: &SiteLayout) -> DirectoryRole {
    match version {
        CgroupVersion::V1 => slurm_v1(levels, site),
        CgroupVersion::V2 => slurm_v2(levels, site),
    }
}

/// Whether a node name is one of Slurm's on this node; it is empty if there is only one daemon.
fn is_node(name: &str, site: &SiteLayout) -> bool {
    site.nodes.iter().any(|node| glob(node, name))
}

/// `slurm[_<node>]/uid_<uid>/job_<id>/step_*/task_*`. Until 22.05 the step's directory belongs to the user: then nothing below it is a task.
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

/// `<slice>/[<node>_]slurmstepd.scope/{job_<id>,<SLUID>}/step_*/{slurm,user}/task_*`. In 22.05 the task's directory belongs to the user.
fn slurm_v2(whole: &[&str], site: &SiteLayout) -> DirectoryRole {
    let mut is_above = false;
    for slice in &site.slices {
        let same = slice.iter().zip(whole).take_while(|(slice, level)| slice == *level).count();
        if same == slice.len() && whole.len() > same {
            match slurm_scope(whole, &whole[same..], site) {
                DirectoryRole::Nothing => {}
                role => return role,
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

/// OAR 2, `oar/<user>_<id>`, whose directories belong to its account; OAR 3, in the unified hierarchy,
/// `oar.slice/oar-u<uid>.slice/oar-u<uid>-j<id>.slice/[…-t<T>.slice/]…-p<P>.scope`.
fn oar(levels: &[&str], version: CgroupVersion, site: &SiteLayout) -> DirectoryRole {
    match (version, levels) {
        (CgroupVersion::V1, ["oar"]) => above(usual(levels, site.oar)),
        (CgroupVersion::V1, ["oar", name]) => {
            // The user's name may contain a `_`.
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
        // Names repeat those of their parents: `oar-u1000-j42-t3-p1.scope`.
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

/// Decodes systemd's escapes in the name of a unit: `\x2d` is `-`. A plain `-` means a slice of another name.
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

/// `user.slice/user-F.slice/user@F.service/[app.slice/]{imp-,}shell-<rank>-<id>.service` of the account F that runs Flux, and of no other user. The
/// IMP starts the shell of another user's job, so that without it the job is F's own.
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
    // A unit's name is ASCII; elsewhere Flux writes the letter `ƒ`. The level keeps the form that can be typed.
    let found = JobPath::new("flux", rank, &format!("\u{192}{digits}"), usual(levels, None));
    let account = (!own).then_some(uid);
    Some(JobPath { uid: own.then_some(uid), level: plain.to_owned(), account, ..found })
}

/// Units by name, in any slice and below any user's own manager, where they belong to that user.
fn systemd(levels: &[&str], _: CgroupVersion, site: &SiteLayout) -> DirectoryRole {
    let owner = usual_owner(levels);
    for (index, level) in levels.iter().enumerate() {
        let last = index + 1 == levels.len();
        if !level.ends_with(".slice") && site.units.iter().any(|unit| glob(unit, level)) {
            let owners = if matches!(owner, PathOwner::Own(_)) { usual(levels, None) } else { given(levels) };
            return match last {
                true => DirectoryRole::Job(JobPath::new(UNITS, "", level, owners).of(owner)),
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
