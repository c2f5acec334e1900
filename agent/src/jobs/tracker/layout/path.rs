//! A job as its path names it: manager, id, owner and step.

use std::fmt;

use wholegrain_model::job::JOB_ID_BYTES_MAX;
use wholegrain_model::name::{LEVEL_BYTES_MAX, sanitize_level};

use super::super::trust::{AllowedOwner, AllowedOwners};

/// The version of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One of several, each with its own controllers.
    V1,
    V2,
}

/// The role of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryRole {
    /// Not a job, and no job below it.
    Nothing,
    /// Not a job, but jobs can be below it if the owners match one of these.
    Above(Vec<AllowedOwners>),
    /// A job or a step of one, if the owners match.
    Job(JobPath),
}

/// The owner of a job by its path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum PathOwner {
    /// The path does not name the owner. The manager chooses the id, which is unique among its running jobs.
    #[default]
    Unspecified,
    /// The manager wrote a uid into the path.
    Uid(u32),
    /// The manager wrote a name into the path.
    Name(String),
    /// The directory is below this user's own systemd manager, and the user chooses its name, which is the job's id.
    Own(u32),
}

impl PathOwner {
    /// Whether directories with these owners can belong to one job, if manager and id are equal.
    pub fn may_be(&self, other: &PathOwner) -> bool {
        let own = |owner: &PathOwner| matches!(owner, PathOwner::Own(_));
        self == other
            || (*self == PathOwner::Unspecified && !own(other))
            || (*other == PathOwner::Unspecified && !own(self))
    }

    /// The uid that the path names.
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

/// The owner's form in records.
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

/// A job or a step, as its path names it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobPath {
    /// The manager's name in records.
    pub manager: String,
    /// The daemon of the manager, where several on one node have jobs: Slurm's node name, Flux's rank; often empty.
    pub instance: String,
    /// The id as the manager writes it, at most [`JOB_ID_BYTES_MAX`] bytes.
    pub job: String,
    /// The level in the names of its sensors.
    pub level: String,
    /// The owner that the path names.
    pub owner: PathOwner,
    /// The owner of the processes, if the layout names it.
    pub uid: Option<u32>,
    pub user: Option<String>,
    /// The account of the manager's own daemons, whose processes in the job do not identify the owner.
    pub account: Option<u32>,
    /// The allowed owners of the directories on the path.
    pub owners: AllowedOwners,
    /// The path of the step below the job, such as `step_0/task_1`; empty for the job itself.
    pub step: String,
    /// Whether steps can be below it.
    pub deeper: bool,
}

impl JobPath {
    pub fn new(manager: &str, instance: &str, job: &str, owners: AllowedOwners) -> Self {
        let job = fit_id(job);
        let level = level_of(&job);
        Self { manager: manager.to_owned(), instance: instance.to_owned(), job, level, owners, ..Self::default() }
    }

    /// Sets the owner that the path names. The level of an id that a user has chosen ends with the uid, so that it cannot be another user's.
    pub fn of(mut self, owner: PathOwner) -> Self {
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

/// The user whose slice the path leads through, and whether it leads below that user's own systemd manager.
pub fn user_of(levels: &[&str]) -> Option<(u32, bool)> {
    let ["user.slice", slice, below @ ..] = levels else { return None };
    let uid = decimal(slice.strip_prefix("user-")?.strip_suffix(".slice")?)?;
    let own = matches!(below, [service, _, ..] if user_service(service) == Some(uid));
    Some((uid, own))
}

/// The allowed owners of any path: root, an account besides it, and below `user.slice/user-U.slice/user@U.service` U.
pub fn usual(levels: &[&str], account: Option<u32>) -> AllowedOwners {
    let mut owners = vec![account.map_or(AllowedOwner::Root, AllowedOwner::Or); levels.len()];
    if let Some((uid, _)) = user_of(levels)
        && levels.get(2).is_some_and(|service| user_service(service) == Some(uid))
    {
        owners[..2].fill(AllowedOwner::Root);
        owners[2..].fill(AllowedOwner::Or(uid));
    }
    owners
}

/// The owner that the path names by itself.
pub fn usual_owner(levels: &[&str]) -> PathOwner {
    match user_of(levels) {
        Some((uid, true)) => PathOwner::Own(uid),
        Some((uid, false)) => PathOwner::Uid(uid),
        None => PathOwner::Unspecified,
    }
}

/// An id of any length, cut to the bound of records; a hash keeps cut ids distinct.
pub fn fit_id(id: &str) -> String {
    if id.len() <= JOB_ID_BYTES_MAX {
        return id.to_owned();
    }
    format!("{}-{:08x}", cut(id, JOB_ID_BYTES_MAX - 9), hash(id))
}

/// The level of an id: the id itself if it is a valid level. Otherwise invalid characters are replaced and a hash is appended, so that different ids
/// have different levels, on any node and at any time.
pub fn level_of(id: &str) -> String {
    let level = sanitize_level(id);
    if level == id {
        return level;
    }
    format!("{}-{:08x}", cut(&level, LEVEL_BYTES_MAX - 9), hash(id))
}

/// A level with a suffix that is not cut.
pub fn level_for(level: &str, after: &str) -> String {
    let room = LEVEL_BYTES_MAX - after.len();
    match level.len() <= room {
        true => format!("{level}{after}"),
        false => format!("{}-{:08x}{after}", cut(level, room - 9), hash(level)),
    }
}

pub fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// FNV-1a, 32 bits: the same on every node and in every version.
pub fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A plain decimal number, without a sign and leading zeros.
pub fn is_number(text: &str) -> bool {
    is_digits(text) && text.len() <= 20 && (text == "0" || !text.starts_with('0'))
}

pub fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

pub fn decimal(text: &str) -> Option<u32> {
    is_number(text).then(|| text.parse().ok())?
}

/// The uid in `user@<uid>.service`.
pub fn user_service(level: &str) -> Option<u32> {
    decimal(level.strip_prefix("user@")?.strip_suffix(".service")?)
}
