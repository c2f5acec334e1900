//! The rules that people have added, on disk, so that they survive a restart.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
    owner: Option<StoredOwner>,
}

#[derive(Serialize, Deserialize)]
struct StoredOwner {
    uid: Option<u32>,
    user: Option<String>,
    only: Vec<String>,
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
pub struct RuleFile {
    path: PathBuf,
}

impl RuleFile {
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join(FILE) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file. A damaged file is renamed and reported in `problems`; expired rules are left out.
    pub fn load(&self, now: i64, problems: &mut Vec<String>) -> LoadedRules {
        let stored = match read(&self.path) {
            Ok(Some(stored)) => stored,
            Ok(None) => return LoadedRules::default(),
            Err(why) => {
                problems.push(self.rename_damaged(&why));
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
                    problems.push(format!("{}: rule {id}: {why}; it is dropped", self.path.display()));
                    kept.dropped = true;
                }
            }
        }
        kept
    }

    fn rename_damaged(&self, why: &str) -> String {
        let aside = self.path.with_extension("json.damaged");
        let shown = self.path.display();
        match fs::rename(&self.path, &aside) {
            Ok(()) => format!(
                "{shown} is damaged ({why}); rules that people added are lost, the file is kept as {}",
                aside.display()
            ),
            Err(error) => format!("{shown} is damaged ({why}), and cannot be renamed: {error}"),
        }
    }

    /// Replaces the file: a reader, also after a crash, sees the old or the new contents.
    pub fn save(&self, rules: &[Arc<Rule>], next: u64) -> io::Result<()> {
        let rules = rules.iter().map(|rule| StoredRule::of(rule)).collect();
        let bytes = serde_json::to_vec(&RuleFileContent { version: VERSION, next, rules })?;
        let dir = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir)?;
        let temporary = self.path.with_extension("json.new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&temporary)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        File::open(dir)?.sync_all()
    }
}

fn read(path: &Path) -> Result<Option<RuleFileContent>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    let stored: RuleFileContent = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if stored.version != VERSION {
        return Err(format!("its version is {}; this agent reads version {VERSION}", stored.version));
    }
    if stored.rules.len() > RULES_MAX {
        return Err(format!("it has {} rules; at most {RULES_MAX} are allowed", stored.rules.len()));
    }
    Ok(Some(stored))
}

impl StoredRule {
    fn of(rule: &Rule) -> Self {
        let owner = rule.owner.as_ref();
        Self {
            id: rule.id,
            rule: rule.spec.raw(),
            until_ns: rule.until,
            by: rule.by.clone(),
            made_ns: rule.made,
            owner: owner.map(|RuleOwner { uid, user, only }| StoredOwner {
                uid: *uid,
                user: user.clone(),
                only: only.clone(),
            }),
        }
    }

    fn check(self) -> Result<Rule, String> {
        if self.id <= RULES_MAX as u64 || self.id == u64::MAX {
            return Err("its number is not one of an added rule".into());
        }
        let spec = RuleSpec::read(&self.rule).map_err(|refusal| refusal.to_string())?;
        let owner = self.owner.map(|StoredOwner { uid, user, only }| RuleOwner { uid, user, only });
        Ok(Rule { id: self.id, spec, until: self.until_ns, by: self.by, owner, made: self.made_ns })
    }
}
