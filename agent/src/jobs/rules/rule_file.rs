//! The rules that people have added, on disk, so that they survive a restart.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::state_file::{StateFile, check_version};
use super::rule::{RULES_MAX, RawRule, Rule, RuleOwner, RuleSpec};

/// The file in the jobs' directory.
const FILE: &str = "rules.json";
/// The largest file that is read: 64 MiB.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The version of the format.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct RuleFileContent {
    version: u32,
    next: u64,
    rules: Vec<StoredRule>,
}

#[derive(Serialize, Deserialize)]
struct StoredRule {
    id: u64,
    rule: RawRule,
    until_ns: Option<i64>,
    by: String,
    made_ns: Option<i64>,
    owner: Option<RuleOwner>,
}

/// The contents of the file.
#[derive(Debug, Default)]
pub struct LoadedRules {
    pub rules: Vec<Rule>,
    pub next: u64,
    /// Whether some rules have expired, so that the file has to be written again.
    pub dropped: bool,
}

#[derive(Debug)]
pub struct RuleFile(StateFile);

impl RuleFile {
    pub fn new(dir: &Path) -> Self {
        Self(StateFile::new(dir.join(FILE), FILE_BYTES_MAX, "rules that people added are lost"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Reads the file; expired rules are left out.
    pub fn load(&self, now: i64, problems: &mut Vec<String>) -> LoadedRules {
        let stored = match self.0.read(check) {
            Ok(Some(stored)) => stored,
            Ok(None) => return LoadedRules::default(),
            Err(why) => {
                problems.push(why);
                return LoadedRules::default();
            }
        };
        let mut kept = LoadedRules { next: stored.next, ..LoadedRules::default() };
        for stored in stored.rules {
            let id = stored.id;
            match stored.check() {
                Ok(rule) if rule.is_over(now) => kept.dropped = true,
                Ok(rule) => {
                    kept.next = kept.next.max(id + 1);
                    kept.rules.push(rule);
                }
                Err(why) => {
                    problems.push(format!("{}: rule {id}: {why}; it is dropped", self.path().display()));
                    kept.dropped = true;
                }
            }
        }
        kept
    }

    pub fn save(&self, rules: &[Arc<Rule>], next: u64) -> io::Result<()> {
        let rules = rules.iter().map(|rule| StoredRule::of(rule)).collect();
        self.0.write(&RuleFileContent { version: VERSION, next, rules })
    }
}

fn check(content: &RuleFileContent) -> Result<(), String> {
    check_version(content.version, VERSION)?;
    match content.rules.len() > RULES_MAX {
        true => Err(format!("it has {} rules; at most {RULES_MAX} are allowed", content.rules.len())),
        false => Ok(()),
    }
}

impl StoredRule {
    fn of(rule: &Rule) -> Self {
        Self {
            id: rule.id,
            rule: rule.spec.raw(),
            until_ns: rule.until,
            by: rule.by.clone(),
            made_ns: rule.made,
            owner: rule.owner.clone(),
        }
    }

    fn check(self) -> Result<Rule, String> {
        if self.id <= RULES_MAX as u64 || self.id == u64::MAX {
            return Err("its number is not one of an added rule".into());
        }
        let spec = RuleSpec::read(&self.rule).map_err(|refusal| refusal.to_string())?;
        Ok(Rule { id: self.id, spec, until: self.until_ns, by: self.by, owner: self.owner, made: self.made_ns })
    }
}
