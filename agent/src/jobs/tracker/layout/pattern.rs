//! `[[jobs.pattern]]`: a layout of the configuration.

use regex_lite::Regex;
use serde::Deserialize;

use super::super::trust::AllowedOwner;
use super::path::{DirectoryRole, JobPath, PathOwner, decimal, usual, usual_owner};

/// The longest expression, in bytes.
const PATTERN_BYTES_MAX: usize = 4096;
const CAPTURES: &[&str] = &["job", "uid", "user", "step"];

/// A table `[[jobs.pattern]]` as it is written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawPattern {
    /// The manager's name in records.
    pub name: String,
    /// A regular expression for the path below the hierarchy's root, with a capture `job`, and optionally `uid`, `user`, `step`.
    pub path: String,
    /// An account, or its uid, that may own the directories besides root.
    #[serde(default)]
    pub owner: Option<String>,
}

pub struct JobPathPattern {
    name: String,
    whole: Regex,
    above: ParentPatterns,
    steps: bool,
}

impl JobPathPattern {
    /// Compiles and checks a pattern; the error says where and what.
    pub fn new(raw: &RawPattern) -> Result<Self, String> {
        if raw.path.len() > PATTERN_BYTES_MAX {
            return Err(format!("path has {} bytes, at most {PATTERN_BYTES_MAX} are allowed", raw.path.len()));
        }
        let bare = Regex::new(&raw.path).map_err(|error| explain(&raw.path, &error))?;
        let names: Vec<&str> = bare.capture_names().flatten().collect();
        if !names.contains(&"job") {
            return Err("path has no capture `job`; write (?<job>…) around the job's id".to_owned());
        }
        if let Some(name) = names.iter().find(|name| !CAPTURES.contains(name)) {
            return Err(wholegrain_model::config::unknown("capture", name, CAPTURES));
        }
        let whole = Regex::new(&format!("^(?:{})$", raw.path)).map_err(|error| explain(&raw.path, &error))?;
        Ok(Self {
            name: raw.name.clone(),
            whole,
            above: ParentPatterns::new(&raw.path),
            steps: names.contains(&"step"),
        })
    }

    /// The role of a directory; `account` may own directories as root may. Below a user's own manager a job belongs to that user, whatever is
    /// captured.
    pub fn role_of(&self, path: &str, levels: &[&str], account: Option<u32>) -> DirectoryRole {
        let mut owners = usual(levels, account);
        let Some(captures) = self.whole.captures(path) else {
            let above = self.above.matches(levels);
            return if above { DirectoryRole::Above(vec![owners]) } else { DirectoryRole::Nothing };
        };
        let get = |name| captures.name(name).map(|text| text.as_str()).filter(|text| !text.is_empty());
        let Some(job) = get("job") else { return DirectoryRole::Nothing };
        let owner = match (usual_owner(levels), get("uid").and_then(decimal), get("user")) {
            (PathOwner::Own(uid), ..) => PathOwner::Own(uid),
            (_, Some(uid), _) => PathOwner::Uid(uid),
            (PathOwner::Uid(uid), ..) => PathOwner::Uid(uid),
            (_, None, Some(name)) => PathOwner::Name(name.to_owned()),
            (owner, None, None) => owner,
        };
        if !matches!(owner, PathOwner::Own(_))
            && let Some(last) = owners.last_mut()
        {
            *last = AllowedOwner::Anyone;
        }
        let found = JobPath::new(&self.name, "", job, owners);
        // A name that the user has chosen does not identify the owner.
        let user = if matches!(owner, PathOwner::Own(_)) { None } else { get("user") };
        let found = JobPath { account, ..found }.of(owner);
        let found = JobPath { user: user.map(str::to_owned), ..found };
        DirectoryRole::Job(JobPath { step: get("step").unwrap_or_default().to_owned(), deeper: self.steps, ..found })
    }
}

/// Directories that can be above a job: those that match a beginning of the expression, one for each slash outside of brackets.
struct ParentPatterns {
    levels: Vec<Regex>,
    /// After these beginnings a part of the expression can itself match a slash, or a group spans one, so that levels cannot be distinguished: every
    /// directory below them can be above a job.
    open: bool,
}

impl ParentPatterns {
    fn new(path: &str) -> Self {
        let bytes = path.as_bytes();
        let (mut groups, mut class, mut cuts, mut at, mut open) = (0_usize, false, Vec::new(), 0, false);
        while at < bytes.len() && !open {
            match bytes[at] {
                b'\\' => {
                    open = matches!(bytes.get(at + 1), Some(b'S' | b'D' | b'W'));
                    at += 1;
                }
                b'[' if !class => {
                    class = true;
                    let end = path[at..].find(']').map_or(path.len(), |end| at + end);
                    open = bytes.get(at + 1) == Some(&b'^') && !path[at..end].contains('/');
                }
                b']' => class = false,
                b'(' if !class => groups += 1,
                b')' if !class => groups = groups.saturating_sub(1),
                b'|' if !class && groups == 0 => {
                    // The text before it consists of the levels of one of several alternatives.
                    cuts.clear();
                    open = true;
                }
                b'.' if !class => open = matches!(bytes.get(at + 1), Some(b'*' | b'+' | b'{')),
                b'/' if !class && groups > 0 => open = true,
                b'/' if !class => cuts.push(at),
                _ => {}
            }
            at += 1;
        }
        let levels = cuts.into_iter().map_while(|cut| Regex::new(&format!("^(?:{})$", &path[..cut])).ok()).collect();
        Self { levels, open }
    }

    fn matches(&self, levels: &[&str]) -> bool {
        match self.levels.get(levels.len() - 1) {
            Some(regex) => regex.is_match(&levels.join("/")),
            None if !self.open => false,
            None => self.levels.last().is_none_or(|last| last.is_match(&levels[..self.levels.len()].join("/"))),
        }
    }
}

/// The error of an expression: after its longest valid beginning, with the open brackets closed.
fn explain(path: &str, error: &regex_lite::Error) -> String {
    let is_good = |end: usize| (0..8).any(|open| Regex::new(&format!("{}{}", &path[..end], ")".repeat(open))).is_ok());
    let good = (0..path.len()).rev().find(|end| path.is_char_boundary(*end) && is_good(*end)).unwrap_or(0);
    let rest: String = path[good..].chars().take(20).collect();
    format!("path is invalid from character {}, `{rest}`: {error}", path[..good].chars().count() + 1)
}
