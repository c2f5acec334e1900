//! Tokens with roles, from a file of the server's tokens, as `wholegrain auth token` writes it. The file is read again when it changes.
//!
//! Each line is a JSON object; empty lines and those that begin with `#` are skipped. A line that begins otherwise is an administrator's token in
//! plain text. The file has SHA-256 hashes only: a token has 256 random bits, so that salt and key stretching would add nothing.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use wholegrain_model::Timestamp;

use crate::jobs::{CallerIdentity, Role};
use crate::sync::lock;

/// The largest file that is read: 16 MiB.
const FILE_BYTES_MAX: u64 = 16 << 20;
const TOKENS_MAX: usize = 10_000;
/// The longest token that is checked, in bytes.
const SHOWN_BYTES_MAX: usize = 4096;
/// The shortest token in plain text, in bytes.
const PLAIN_BYTES_MIN: usize = 16;

type TokenHash = [u8; 32];

/// A line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    id: String,
    name: String,
    role: TokenRole,
    sha256: String,
    #[serde(default, rename = "created")]
    _created: String,
    #[serde(default)]
    expires: Option<String>,
    #[serde(default)]
    revoked: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TokenRole {
    Admin,
    Support,
    User,
    /// Sends readings to the server; has no rights here.
    Agent,
}

#[derive(Debug)]
struct KnownToken {
    hash: TokenHash,
    id: String,
    name: String,
    role: TokenRole,
    expires: Option<Timestamp>,
    revoked: bool,
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenError {
    Unknown,
    Expired,
    Revoked,
    /// For agents that send to the server.
    Agent,
}

impl TokenError {
    /// The message for the caller.
    pub fn why(self) -> &'static str {
        match self {
            TokenError::Unknown => "this agent does not know this token",
            TokenError::Expired => "this token has expired; ask the administrator for another",
            TokenError::Revoked => "this token was revoked; ask the administrator for another",
            TokenError::Agent => "a token with the role agent sends readings to the server; it has no rights here",
        }
    }
}

/// Identifies a version of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self {
            inode: meta.ino(),
            bytes: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

/// A file of tokens, read again when it changes. An invalid file is reported and the tokens read before stay valid; a removed file has no tokens.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    inner: Mutex<(Option<FileStamp>, Vec<KnownToken>)>,
}

impl TokenFile {
    pub fn open(path: &Path) -> Result<Self, String> {
        let stamp = FileStamp::of(path);
        let known = parse(&read(path)?)?;
        Ok(Self { path: path.to_owned(), inner: Mutex::new((stamp, known)) })
    }

    /// The owner of a token. Every hash is compared as a whole, so that the time says nothing about any of them.
    pub fn check(&self, token: &str, peer: &str, now: Timestamp) -> Result<CallerIdentity, TokenError> {
        if token.len() > SHOWN_BYTES_MAX {
            return Err(TokenError::Unknown);
        }
        let mut inner = lock(&self.inner);
        self.reload_if_changed(&mut inner);
        let hash: TokenHash = Sha256::digest(token).into();
        let mut found = None;
        for known in &inner.1 {
            if same(&known.hash, &hash) {
                found = Some(known);
            }
        }
        let known = found.ok_or(TokenError::Unknown)?;
        if known.revoked {
            return Err(TokenError::Revoked);
        }
        if known.expires.is_some_and(|end| now >= end) {
            return Err(TokenError::Expired);
        }
        let role = match known.role {
            TokenRole::Admin => Role::Admin,
            TokenRole::Support => Role::Support,
            TokenRole::User => Role::User,
            TokenRole::Agent => return Err(TokenError::Agent),
        };
        let name = format!("token {} {} ({peer})", known.name, known.id);
        let user = (role == Role::User).then(|| known.name.clone());
        Ok(CallerIdentity { name, role, uid: None, user, pid: None })
    }

    fn reload_if_changed(&self, inner: &mut (Option<FileStamp>, Vec<KnownToken>)) {
        let stamp = FileStamp::of(&self.path);
        if stamp == inner.0 {
            return;
        }
        inner.0 = stamp;
        let shown = self.path.display();
        match read(&self.path).and_then(|text| parse(&text)) {
            Ok(known) => {
                tracing::info!("tokens_file: {shown} has changed; {} tokens", known.len());
                inner.1 = known;
            }
            Err(why) => tracing::error!("tokens_file: {shown}: {why}; the tokens read before stay valid"),
        }
    }
}

/// The file's text; empty if it was removed.
fn read(path: &Path) -> Result<String, String> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        other => other.map_err(|error| format!("cannot read it: {error}"))?,
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| format!("cannot read it: {error}"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}

fn parse(text: &str) -> Result<Vec<KnownToken>, String> {
    let mut list: Vec<KnownToken> = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let known = if line.starts_with('{') { entry(line) } else { plain(line) };
        list.push(known.map_err(|why| format!("line {number}: {why}"))?);
        if list.len() > TOKENS_MAX {
            return Err(format!("over {TOKENS_MAX} tokens; remove lines of revoked ones"));
        }
    }
    Ok(list)
}

fn entry(line: &str) -> Result<KnownToken, String> {
    // The line may be a secret: it is not part of the message.
    let words = |error: serde_json::Error| error.to_string().split(" at line ").next().unwrap_or_default().to_owned();
    let entry: TokenEntry =
        serde_json::from_str(line).map_err(|error| format!("not a token's entry: {}", words(error)))?;
    let expires = entry.expires.as_deref().map(|text| Timestamp::parse(text, Timestamp(0)));
    Ok(KnownToken {
        hash: from_hex(&entry.sha256).ok_or("sha256 is not 64 hexadecimal digits")?,
        id: entry.id,
        name: entry.name,
        role: entry.role,
        expires: expires.transpose().map_err(|error| format!("expires: {error}"))?,
        revoked: entry.revoked.is_some(),
    })
}

fn plain(line: &str) -> Result<KnownToken, String> {
    let (token, name) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if token.len() < PLAIN_BYTES_MIN {
        return Err(format!(
            "a token of under {PLAIN_BYTES_MIN} bytes can be guessed; `wholegrain auth token create` makes one"
        ));
    }
    let name = if name.trim().is_empty() { "in the clear" } else { name.trim() };
    Ok(KnownToken {
        hash: Sha256::digest(token).into(),
        id: "plain".into(),
        name: name.to_owned(),
        role: TokenRole::Admin,
        expires: None,
        revoked: false,
    })
}

fn from_hex(text: &str) -> Option<TokenHash> {
    let mut hash = TokenHash::default();
    if text.len() != 2 * hash.len() || !text.is_ascii() {
        return None;
    }
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(hash)
}

/// The tokens that the agent accepts.
pub(super) struct AcceptedTokens {
    /// The administrator's token of `token_file`.
    admin: Option<String>,
    tokens: Option<TokenFile>,
}

impl AcceptedTokens {
    pub fn new(admin: Option<String>, tokens: Option<TokenFile>) -> Self {
        Self { admin, tokens }
    }

    /// The owner of a token, or why it is refused.
    pub fn who(&self, token: Option<&str>, peer: &str, now: Timestamp) -> Result<CallerIdentity, String> {
        let expected = "send a token: `Authorization: Bearer TOKEN`, with the token of the agent's token_file or one of its \
                        tokens_file";
        let Some(token) = token else { return Err(expected.to_owned()) };
        if self.admin.as_ref().is_some_and(|admin| same(admin.as_bytes(), token.as_bytes())) {
            return Ok(CallerIdentity::admin(format!("the token of token_file ({peer})")));
        }
        let Some(tokens) = &self.tokens else { return Err(expected.to_owned()) };
        tokens.check(token, peer, now).map_err(|bad| format!("{}; {expected}", bad.why()))
    }
}

/// Compares in a time that does not depend on the contents.
fn same(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0u8, |all, (x, y)| all | (x ^ y));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_equal_only_as_a_whole() {
        assert!(same(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"abcd", b""] {
            assert!(!same(other, b"abc"));
        }
    }

    const TOKEN: &str = "correct-horse-battery";

    fn line(role: &str, more: &str) -> String {
        let hash: String = Sha256::digest(TOKEN).iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "{{\"id\":\"a1\",\"name\":\"alice\",\"role\":\"{role}\",\"sha256\":\"{hash}\",\"created\":\"2026-01-01T00:00:00Z\"{more}}}\n"
        )
    }

    #[track_caller]
    fn check(line: &str, now: i64, expected: Result<Role, TokenError>) {
        let tokens = TokenFile { path: "/nonexistent".into(), inner: Mutex::new((None, parse(line).unwrap())) };
        let who = tokens.check(TOKEN, "192.0.2.7", Timestamp(now));
        assert_eq!(who.as_ref().map(|who| who.role).map_err(|bad| *bad), expected);
        if let Ok(who) = who {
            assert_eq!(who.user.as_deref(), (who.role == Role::User).then_some("alice"));
        }
        assert_eq!(tokens.check("another-token-that-is-not", "", Timestamp(now)), Err(TokenError::Unknown));
    }

    #[test]
    fn roles_ends_and_revocation() {
        check(&line("admin", ""), 0, Ok(Role::Admin));
        check(&format!("# remark\n\n{}", line("support", "")), 0, Ok(Role::Support));
        check(&line("user", ""), 0, Ok(Role::User));
        check(&line("agent", ""), 0, Err(TokenError::Agent));
        let expires = line("user", ",\"expires\":\"1970-01-01T00:00:10Z\"");
        check(&expires, 9_999_999_999, Ok(Role::User));
        check(&expires, 10_000_000_000, Err(TokenError::Expired));
        check(&line("admin", ",\"revoked\":\"2026-01-02T00:00:00Z\""), 0, Err(TokenError::Revoked));
        check(&format!("{TOKEN} ops"), 0, Ok(Role::Admin));
    }

    #[test]
    fn wrong_files() {
        for (text, part) in [
            ("{\"id\":1}", "line 1: not a token's entry"),
            ("short", "line 1: a token of under 16 bytes"),
            ("\n{\"id\":\"a\",\"name\":\"b\",\"role\":\"user\",\"sha256\":\"zz\"}", "line 2: sha256 is not 64"),
            ("{\"id\":\"a\",\"name\":\"b\",\"role\":\"root\",\"sha256\":\"\"}", "unknown variant"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_changed_file_counts_at_once_and_a_damaged_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let put = |text: &str| {
            fs::write(path.with_extension("new"), text).unwrap();
            fs::rename(path.with_extension("new"), &path).unwrap();
        };
        put(&line("user", ""));
        let tokens = TokenFile::open(&path).unwrap();
        let role = || tokens.check(TOKEN, "", Timestamp(0)).map(|who| who.role);
        assert_eq!(role(), Ok(Role::User));
        put(&line("admin", ""));
        assert_eq!(role(), Ok(Role::Admin));
        put("{ damaged");
        assert_eq!(role(), Ok(Role::Admin), "what was read before still counts");
        put(&line("admin", ",\"revoked\":\"2026-01-02T00:00:00Z\""));
        assert_eq!(role(), Err(TokenError::Revoked));
        fs::remove_file(&path).unwrap();
        assert_eq!(role(), Err(TokenError::Unknown), "a file that is gone has no tokens");
    }
}
