//! Credentials: one file each, named by the configuration, in a folder that only the agent's user or root can change.
//!
//! The file is TOML with text values: `community = "…"`. Its mode is 0600 (nobody else can read it) and its owner the user of this process
//! or root. It is opened once, without following links, and the open file is checked, so that nobody can exchange it after the check.
//! No secret is in a message or in the output of `Debug`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use wholegrain_model::config::unknown;

/// The largest file of credentials: 64 KiB, enough for a chain of certificates.
pub const CREDENTIALS_BYTES_MAX: u64 = 64 << 10;
/// The longest name of a file of credentials, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// The bits of a mode that let others read or write.
const OTHERS: u32 = 0o077;

/// A password, a token or a key. `Debug` and `Display` do not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Takes a secret that no file holds, such as one for a test.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, to send or to hash it. It must not get into a message.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The content of one file of credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    name: String,
    values: BTreeMap<String, SecretText>,
}

/// Why credentials cannot be used. No variant holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("credentials {0:?}: a name has letters, digits, `-`, `_` and `.`, and does not begin with `.`")]
    Name(String),
    #[error("cannot open {}: {error}{}", .path.display(), advice(.error))]
    Open { path: PathBuf, error: io::Error },
    #[error("{} {reason}", .path.display())]
    Refused { path: PathBuf, reason: String },
}

/// What to do about a file that cannot be opened.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ELOOP) => " (it must not be a link)",
        Some(libc::ENOENT) => {
            "; create it with mode 0600, owned by the agent's user (or by root, if the agent is root)"
        }
        Some(libc::EACCES) => "; chown it and its folder to the agent's user; chmod 0600, its folder 0700",
        _ => "",
    }
}

impl Credentials {
    /// Opens and reads the credentials `name` in `folder`.
    pub fn read(folder: &Path, name: &str) -> Result<Self, CredentialsError> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.starts_with('.') || !name.chars().all(is_good) {
            return Err(CredentialsError::Name(name.chars().take(80).collect()));
        }
        let path = folder.join(name);
        let refuse = |reason: String| CredentialsError::Refused { path: path.clone(), reason };
        let text = read_checked(folder, name).map_err(|refusal| match refusal {
            Refusal::Folder(reason) => CredentialsError::Refused { path: folder.to_owned(), reason },
            Refusal::File(reason) => refuse(reason),
            Refusal::Os(error) => CredentialsError::Open { path: path.clone(), error },
        })?;
        // The message of the parser shows the line, which can be a secret: only its number is kept.
        let table: toml::Table = toml::from_str(&text).map_err(|error| {
            let end = error.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count() + 1;
            refuse(format!("is not TOML in line {line}; write lines such as user = \"…\""))
        })?;
        let mut values = BTreeMap::new();
        for (key, value) in table {
            let toml::Value::String(text) = value else {
                return Err(refuse(format!("has a value of `{key}` that is not text in quotes")));
            };
            values.insert(key, SecretText(text));
        }
        Ok(Self { name: name.to_owned(), values })
    }

    /// Credentials without a file, for tests.
    pub fn of(name: &str, values: &[(&str, &str)]) -> Self {
        let values = values.iter().map(|(key, value)| ((*key).to_owned(), SecretText::new(*value))).collect();
        Self { name: name.to_owned(), values }
    }

    /// The name in the configuration and of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value of a key, if the file has it.
    pub fn get(&self, key: &str) -> Option<&SecretText> {
        self.values.get(key)
    }

    /// The value of a key that the protocol needs.
    pub fn require(&self, key: &str) -> Result<&SecretText, String> {
        self.get(key).ok_or_else(|| format!("the credentials {:?} have no `{key}`", self.name))
    }

    /// Refuses keys that are not in `known`, and names the nearest.
    pub fn check_keys(&self, known: &[&str]) -> Result<(), String> {
        match self.values.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(format!("credentials {:?}: {}", self.name, unknown("key", key, known))),
            None => Ok(()),
        }
    }
}

enum Refusal {
    Folder(String),
    File(String),
    Os(io::Error),
}

/// Reads the file `name` of `folder` after it has checked both through their open descriptors.
fn read_checked(folder: &Path, name: &str) -> Result<String, Refusal> {
    let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(folder).map_err(Refusal::Os)?;
    let held = directory.metadata().map_err(Refusal::Os)?;
    if !is_trusted(held.uid()) || held.mode() & 0o022 != 0 {
        let reason = "can be changed by others: chown it to root or the agent's user, and chmod 0700";
        return Err(Refusal::Folder(reason.to_owned()));
    }
    let name = CString::new(name).map_err(|_| Refusal::File("has a NUL in its name".to_owned()))?;
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: `name` is a C string that lives during the call, and the descriptor of the directory is open.
    let descriptor = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags) };
    if descriptor < 0 {
        return Err(Refusal::Os(io::Error::last_os_error()));
    }
    // SAFETY: openat has just returned this descriptor, and nothing else has it.
    let file = unsafe { File::from_raw_fd(descriptor) };
    let held = file.metadata().map_err(Refusal::Os)?;
    let reason = if !held.is_file() {
        "is not a regular file"
    } else if !is_trusted(held.uid()) {
        "belongs to another user: chown it to root or the agent's user"
    } else if held.mode() & OTHERS != 0 {
        "can be read or written by others: chmod 0600"
    } else if held.len() > CREDENTIALS_BYTES_MAX {
        "is larger than 64 KiB"
    } else {
        let mut text = String::new();
        return match file.take(CREDENTIALS_BYTES_MAX).read_to_string(&mut text) {
            Ok(_) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Refusal::File("is not UTF-8 text".to_owned()))
            }
            Err(error) => Err(Refusal::Os(error)),
        };
    };
    Err(Refusal::File(reason.to_owned()))
}

/// Whether a user may own credentials: root, or the user of this process.
fn is_trusted(uid: u32) -> bool {
    // SAFETY: geteuid has no arguments and cannot fail.
    uid == 0 || uid == unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn put(folder: &Path, name: &str, text: &str, mode: u32) {
        fs::write(folder.join(name), text).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        folder
    }

    #[test]
    fn a_private_file_is_read() {
        let folder = folder();
        put(folder.path(), "pdu", "community = \"hidden-word\"\n", 0o600);
        let credentials = Credentials::read(folder.path(), "pdu").unwrap();
        assert_eq!(credentials.require("community").unwrap().expose(), "hidden-word");
        assert!(!format!("{credentials:?}").contains("hidden-word"));
        assert_eq!(credentials.require("user").unwrap_err(), "the credentials \"pdu\" have no `user`");
        let error = credentials.check_keys(&["communities", "user"]).unwrap_err();
        assert_eq!(error, "credentials \"pdu\": unknown key `community`; did you mean `communities`?");
    }

    #[test]
    fn what_others_can_read_or_change_is_refused() {
        let folder = folder();
        let path = folder.path();
        put(path, "open", "a = \"hidden\"", 0o640);
        put(path, "writable", "a = \"hidden\"", 0o602);
        put(path, "real", "a = \"hidden\"", 0o600);
        put(path, "broken", "a = \"x\"\nhidden-word\n", 0o600);
        put(path, "number", "a = 1234567", 0o600);
        put(path, "large", &"#".repeat(CREDENTIALS_BYTES_MAX as usize + 1), 0o600);
        put(path, "binary", "", 0o600);
        fs::write(path.join("binary"), [0xff, 0xfe]).unwrap();
        symlink(path.join("real"), path.join("link")).unwrap();
        fs::create_dir(path.join("folder")).unwrap();
        let fifo = CString::new(path.join("fifo").to_str().unwrap()).unwrap();
        // SAFETY: `fifo` is a C string that lives during the call.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        for (name, part) in [
            ("open", "read or written by others: chmod 0600"),
            ("writable", "read or written by others: chmod 0600"),
            ("broken", "is not TOML in line 2"),
            ("number", "a value of `a` that is not text"),
            ("large", "larger than 64 KiB"),
            ("binary", "not UTF-8"),
            ("link", "it must not be a link"),
            ("folder", "not a regular file"),
            ("fifo", "not a regular file"),
            ("absent", "absent: No such file or directory (os error 2); create it with mode 0600, owned by"),
            ("../real", "a name has letters"),
            (".hidden", "a name has letters"),
            ("", "a name has letters"),
        ] {
            let error = Credentials::read(path, name).expect_err(name);
            assert!(error.to_string().contains(part), "{name:?}: {error}");
            assert!(!format!("{error} {error:?}").contains("hidden-word"), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("1234567"), "{error:?}");
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o770)).unwrap();
        let error = Credentials::read(path, "real").unwrap_err().to_string();
        assert!(error.contains("can be changed by others"), "{error}");
    }

    #[test]
    fn files_of_other_users_are_refused() {
        let folder = folder();
        put(folder.path(), "theirs", "a = \"b\"", 0o600);
        // Only root can give a file away: without that right there is nothing to test.
        if std::os::unix::fs::chown(folder.path().join("theirs"), Some(12_345), None).is_ok() {
            let error = Credentials::read(folder.path(), "theirs").unwrap_err().to_string();
            assert!(error.contains("belongs to another user"), "{error}");
        }
    }
}
