//! Revoked certificates: a file of serial numbers and names.
//!
//! One a line: `serial HEX NAME` for one certificate (the name is a comment), or `name NAME` for all certificates with this common name. Empty lines
//! and those that begin with `#` are skipped. A missing file revokes nothing.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::files::{self, FileError};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Revoked {
    /// Serial numbers, and the common name of each certificate.
    serials: HashMap<String, String>,
    names: HashSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revocation {
    /// One certificate: its serial number in hexadecimal and its common name.
    Serial(String, String),
    /// All certificates of this common name.
    Name(String),
}

impl std::fmt::Display for Revocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Revocation::Serial(serial, name) => write!(f, "serial {serial} {name}"),
            Revocation::Name(name) => write!(f, "name {name}"),
        }
    }
}

/// Normalizes a serial number: lower-case hexadecimal without colons and leading zeros.
pub fn normal_serial(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| *c != ':').collect::<String>().to_ascii_lowercase();
    let well_formed = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let short = digits.trim_start_matches('0');
    well_formed.then(|| if short.is_empty() { "0".to_owned() } else { short.to_owned() })
}

impl Revoked {
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let mut revoked = Self::default();
        for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || {
                let reason =
                    format!("line {number}: write `serial HEX NAME` or `name NAME`, as `wholegrain ca revoke` does");
                FileError::content(path, reason)
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["serial", serial, ref name @ ..] if name.len() <= 1 => {
                    let name = name.first().copied().unwrap_or_default();
                    revoked.serials.insert(normal_serial(serial).ok_or_else(wrong)?, name.to_owned());
                }
                ["name", name] => {
                    revoked.names.insert(name.to_owned());
                }
                _ => return Err(wrong()),
            }
        }
        Ok(revoked)
    }

    pub fn has(&self, name: &str, serial: &str) -> bool {
        self.names.contains(name) || normal_serial(serial).is_some_and(|serial| self.serials.contains_key(&serial))
    }

    /// Names that have a revoked certificate here and had none in `before`.
    pub fn newly_named(&self, before: &Self) -> Vec<String> {
        let serials =
            self.serials.iter().filter(|(serial, name)| !before.serials.contains_key(*serial) && !name.is_empty());
        serials.map(|(_, name)| name).chain(self.names.difference(&before.names)).cloned().collect()
    }
}

/// Whether the file revokes the certificate of this name and serial number; false without a file.
pub fn has(path: &Path, name: &str, serial: &str) -> Result<bool, FileError> {
    Ok(Revoked::parse(path, &files::read_or_empty(path)?)?.has(name, serial))
}

/// Adds a line to the file; returns whether it was new.
pub fn revoke(path: &Path, revocation: &Revocation) -> Result<bool, FileError> {
    files::edit(path, |text| {
        let known = Revoked::parse(path, text)?;
        let there = match revocation {
            Revocation::Serial(serial, _) => {
                normal_serial(serial).is_some_and(|serial| known.serials.contains_key(&serial))
            }
            Revocation::Name(name) => known.names.contains(name),
        };
        let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        Ok((if there { text.to_owned() } else { format!("{text}{gap}{revocation}\n") }, !there))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_and_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("revoked");
        assert!(revoke(&path, &Revocation::Serial("0A:bc".to_owned(), "n1".to_owned())).unwrap());
        assert!(!revoke(&path, &Revocation::Serial("abc".to_owned(), "n1".to_owned())).unwrap());
        let before = Revoked::parse(&path, &files::read(&path).unwrap()).unwrap();
        assert!(revoke(&path, &Revocation::Name("n2".to_owned())).unwrap());
        let revoked = Revoked::parse(&path, &files::read(&path).unwrap()).unwrap();
        for (name, serial, expected) in
            [("n1", "0abc", true), ("n1", "0a:bd", false), ("n3", "ABC", true), ("n2", "1", true), ("n3", "1", false)]
        {
            assert_eq!(revoked.has(name, serial), expected, "{name} {serial}");
        }
        assert_eq!(revoked.newly_named(&before), ["n2"]);
        for bad in ["n1", "serial", "serial xyz n1", "name a b", "name"] {
            assert!(Revoked::parse(&path, bad).unwrap_err().to_string().contains("line 1"), "{bad}");
        }
    }
}
