//! The file of users with passwords: `name:hash` lines.

use std::path::Path;

use super::files::{self, FileError};
use super::passwords;

/// A change of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserChange {
    Added,
    Changed,
}

/// The names in a file, sorted; none if it is missing.
pub fn list(path: &Path) -> Result<Vec<String>, FileError> {
    Ok(parse(path, &files::read_or_empty(path)?)?.into_keys().collect())
}

pub(super) fn parse(path: &Path, text: &str) -> Result<std::collections::BTreeMap<String, String>, FileError> {
    passwords::parse_password_file(text).map_err(|reason| FileError::content(path, reason))
}

/// The name of a line that is not a comment.
fn name_of(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.starts_with('#') { None } else { line.split_once(':').map(|(name, _)| name) }
}

/// Sets a user's password hash. `expected` says whether the user must be new or exist.
pub fn set(path: &Path, name: &str, hash: &str, expected: UserChange) -> Result<(), FileError> {
    files::edit(path, |text| {
        let there = parse(path, text)?.contains_key(name);
        let refuse = |reason: String| Err(FileError::content(path, reason));
        match (there, expected) {
            (true, UserChange::Added) => {
                return refuse(format!(
                    "user {name:?} exists already; `wholegrain auth user passwd {name}` changes the password"
                ));
            }
            (false, UserChange::Changed) => {
                return refuse(format!("no user {name:?}; `wholegrain auth user add {name}` adds it"));
            }
            _ => {}
        }
        let mut out: String = text
            .lines()
            .map(|line| match name_of(line) {
                Some(found) if found == name => format!("{name}:{hash}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        if !there {
            out.push_str(&format!("{name}:{hash}\n"));
        }
        Ok((out, ()))
    })
}

pub fn remove(path: &Path, name: &str) -> Result<(), FileError> {
    files::edit(path, |text| {
        if !parse(path, text)?.contains_key(name) {
            return Err(FileError::content(path, format!("no user {name:?}; `wholegrain auth user list` shows all")));
        }
        let kept = text.lines().filter(|line| name_of(line) != Some(name));
        Ok((kept.map(|line| format!("{line}\n")).collect(), ()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_come_change_and_go_and_remarks_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwords");
        // Of no password: making a real one takes long by design.
        let hash = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$1bPzWVP1SbzNFyPHzjX4N4tBJWJ1cMw4PQXXqXmTCFc";
        let other = hash.replace("$1bPz", "$2bPz");
        assert_eq!(list(&path).unwrap(), Vec::<String>::new());
        set(&path, "n1", hash, UserChange::Added).unwrap();
        std::fs::write(&path, format!("# ours\n{}", files::read(&path).unwrap())).unwrap();
        set(&path, "n2", hash, UserChange::Added).unwrap();
        assert!(set(&path, "n1", hash, UserChange::Added).unwrap_err().to_string().contains("exists already"));
        assert!(set(&path, "n3", hash, UserChange::Changed).unwrap_err().to_string().contains("no user \"n3\""));
        set(&path, "n1", &other, UserChange::Changed).unwrap();
        assert_eq!(files::read(&path).unwrap(), format!("# ours\nn1:{other}\nn2:{hash}\n"));
        remove(&path, "n1").unwrap();
        assert_eq!(list(&path).unwrap(), ["n2"]);
        assert!(remove(&path, "n1").is_err());
        std::fs::write(&path, "broken\n").unwrap();
        assert!(set(&path, "n1", hash, UserChange::Added).is_err(), "a file that is wrong is left as it is");
    }
}
