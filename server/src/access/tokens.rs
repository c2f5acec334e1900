//! Bearer tokens: a file of their hashes, and the check of a token.
//!
//! One JSON object a line, see [`TokenEntry`]; empty lines and those that begin with `#` are skipped. SHA-256 without salt or work factor is enough:
//! a token is 256 random bits, which can be neither guessed nor listed in a table.

use std::collections::HashSet;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wholegrain_model::Timestamp;

use super::Role;
use super::files::{self, FileError};

/// Random bytes in a token.
pub const TOKEN_BYTES: usize = 32;
/// The longest token that is checked, in bytes.
pub const SHOWN_BYTES_MAX: usize = 4096;
/// The most tokens of one file.
pub const TOKENS_MAX: usize = 10_000;
/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Random bytes in a token's id.
const ID_BYTES: usize = 4;

type TokenHash = [u8; 32];

/// One token's entry; it does not contain the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// The id by which it is listed and revoked.
    pub id: String,
    /// The owner or the purpose.
    pub name: String,
    pub role: Role,
    /// SHA-256 of the token, in hexadecimal.
    pub sha256: String,
    /// A time in RFC 3339 notation.
    pub created: String,
    /// RFC 3339; `None` for never.
    #[serde(default)]
    pub expires: Option<String>,
    /// RFC 3339, if it was revoked.
    #[serde(default)]
    pub revoked: Option<String>,
}

/// The properties of a new token.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The owner or the purpose.
    pub name: String,
    pub role: Role,
    pub expires: Option<Timestamp>,
}

/// The identity of a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    pub id: String,
    pub name: String,
    pub role: Role,
}

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadToken {
    Unknown,
    /// Expired at this time.
    Expired(Bearer, String),
    /// Revoked at this time.
    Revoked(Bearer, String),
}

#[derive(Debug)]
struct StoredToken {
    hash: TokenHash,
    bearer: Bearer,
    expires: Option<(Timestamp, String)>,
    revoked: Option<String>,
}

impl StoredToken {
    fn check(&self, now: Timestamp) -> Result<&Bearer, BadToken> {
        match (&self.revoked, &self.expires) {
            (Some(when), _) => Err(BadToken::Revoked(self.bearer.clone(), when.clone())),
            (_, Some((end, when))) if now >= *end => Err(BadToken::Expired(self.bearer.clone(), when.clone())),
            _ => Ok(&self.bearer),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct TokenTable {
    known: Vec<StoredToken>,
}

impl TokenTable {
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let (mut table, mut ids) = (Self::default(), HashSet::new());
        for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line.trim())) {
            let wrong = |reason: String| FileError::content(path, format!("line {number}: {reason}"));
            let Some(entry) = parse_line(line).map_err(wrong)? else { continue };
            let time = |text: &str| Timestamp::parse(text, Timestamp(0)).map_err(|error| wrong(error.to_string()));
            let expires = match &entry.expires {
                Some(text) => Some((time(text)?, text.clone())),
                None => None,
            };
            if !ids.insert(entry.id.clone()) {
                return Err(wrong(format!("token {} is listed twice; keep one", entry.id)));
            }
            if table.known.len() >= TOKENS_MAX {
                return Err(wrong(format!("over {TOKENS_MAX} tokens; remove lines of revoked ones")));
            }
            table.known.push(StoredToken {
                hash: from_hex(&entry.sha256).ok_or_else(|| wrong("sha256 is not 64 hexadecimal digits".to_owned()))?,
                bearer: Bearer { id: entry.id, name: entry.name, role: entry.role },
                expires,
                revoked: entry.revoked,
            });
        }
        Ok(table)
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Finds a token. Compares all hashes completely, so that the time does not depend on their values.
    pub fn check(&self, token: &str, now: Timestamp) -> Result<Bearer, BadToken> {
        let hash = hash(token);
        let mut found = None;
        for known in &self.known {
            if same(&known.hash, &hash) {
                found = Some(known);
            }
        }
        found.ok_or(BadToken::Unknown)?.check(now).cloned()
    }

    /// Whether the token of this id is still valid with its previous role.
    pub fn still_counts(&self, bearer: &Bearer, now: Timestamp) -> bool {
        let known = self.known.iter().find(|known| known.bearer == *bearer);
        known.is_some_and(|known| known.check(now).is_ok())
    }
}

/// Compares all bytes regardless of differences.
fn same(a: &TokenHash, b: &TokenHash) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b))) == 0
}

fn hash(token: &str) -> TokenHash {
    Sha256::digest(token).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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

fn parse_line(line: &str) -> Result<Option<TokenEntry>, String> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let entry = serde_json::from_str(line);
    // The message leaves out positions within the line and its text, which may be secret.
    entry.map(Some).map_err(|error| format!("not a token's entry: {}", error_words(&error)))
}

fn error_words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

pub fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    let filled = rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| "the system returned no random numbers".to_owned())
}

/// A new token, and its entry for the file.
pub fn make(new: &NewToken, now: Timestamp) -> Result<(String, TokenEntry), String> {
    let token = URL_SAFE_NO_PAD.encode(random::<TOKEN_BYTES>()?);
    let entry = entry_of(&token, new, now)?;
    Ok((token, entry))
}

/// An entry for an existing token.
pub fn entry_of(token: &str, new: &NewToken, now: Timestamp) -> Result<TokenEntry, String> {
    let id = hex(&random::<ID_BYTES>()?);
    let second = |time: Timestamp| Timestamp(time.0 - time.0.rem_euclid(1_000_000_000)).to_string();
    Ok(TokenEntry {
        id,
        name: new.name.clone(),
        role: new.role,
        sha256: hex(&hash(token)),
        created: second(now),
        expires: new.expires.map(second),
        revoked: None,
    })
}

/// The line of an entry in the file.
pub fn line(entry: &TokenEntry) -> String {
    // An entry always has a JSON form.
    serde_json::to_string(entry).unwrap_or_default() + "\n"
}

pub fn check_name(name: &str) -> Result<(), String> {
    match name {
        "" => Err("is empty; write the owner or the purpose".to_owned()),
        name if name.len() > NAME_BYTES_MAX => Err(format!("is longer than {NAME_BYTES_MAX} bytes")),
        name if name.chars().any(char::is_control) => Err("has control characters".to_owned()),
        _ => Ok(()),
    }
}

/// All entries of a file; none if it is missing.
pub fn list(path: &Path) -> Result<Vec<TokenEntry>, FileError> {
    entries(path, &files::read_or_empty(path)?)
}

fn entries(path: &Path, text: &str) -> Result<Vec<TokenEntry>, FileError> {
    TokenTable::parse(path, text)?;
    Ok(text.lines().filter_map(|line| parse_line(line.trim()).ok().flatten()).collect())
}

/// Creates a token and adds its entry to the file. The first result is the token, which is stored nowhere else.
pub fn create(path: &Path, new: &NewToken, now: Timestamp) -> Result<(String, TokenEntry), FileError> {
    check_name(&new.name).map_err(|reason| FileError::content(path, format!("the token's name {reason}")))?;
    files::edit(path, |text| {
        let known = TokenTable::parse(path, text)?;
        if known.len() >= TOKENS_MAX {
            return Err(FileError::content(path, format!("holds {TOKENS_MAX} tokens; remove lines of revoked ones")));
        }
        let (token, entry) = make(new, now).map_err(|reason| FileError::content(path, reason))?;
        let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        Ok((format!("{text}{gap}{}", line(&entry)), (token, entry)))
    })
}

/// Revokes the token of this id, or all valid ones of this name, and returns them.
pub fn revoke(path: &Path, id_or_name: &str, now: Timestamp) -> Result<Vec<TokenEntry>, FileError> {
    files::edit(path, |text| {
        let all = entries(path, text)?;
        let by_id = all.iter().any(|entry| entry.id == id_or_name);
        let chosen = |entry: &TokenEntry| {
            entry.revoked.is_none() && if by_id { entry.id == id_or_name } else { entry.name == id_or_name }
        };
        let when = Timestamp(now.0 - now.0.rem_euclid(1_000_000_000)).to_string();
        let (mut out, mut revoked) = (String::with_capacity(text.len()), Vec::new());
        for old in text.lines() {
            match parse_line(old.trim()) {
                Ok(Some(entry)) if chosen(&entry) => {
                    let entry = TokenEntry { revoked: Some(when.clone()), ..entry };
                    out.push_str(&line(&entry));
                    revoked.push(entry);
                }
                _ => {
                    out.push_str(old);
                    out.push('\n');
                }
            }
        }
        if revoked.is_empty() {
            let known = all.iter().any(|entry| entry.id == id_or_name || entry.name == id_or_name);
            let why =
                if known { "is revoked already" } else { "does not exist; `wholegrain auth token list` shows all" };
            return Err(FileError::content(path, format!("token {id_or_name:?} {why}")));
        }
        Ok((out, revoked))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_769_860_800_000_000_000);
    const DAY_NS: i64 = 86_400_000_000_000;

    fn new(name: &str, role: Role, days: Option<i64>) -> NewToken {
        NewToken { name: name.to_owned(), role, expires: days.map(|days| NOW.saturating_add(days * DAY_NS)) }
    }

    #[test]
    fn a_token_counts_until_it_ends_or_is_revoked_and_its_file_does_not_hold_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let (reader, entry) = create(&path, &new("grafana", Role::User, Some(90)), NOW).unwrap();
        let (admin, _) = create(&path, &new("me", Role::Admin, None), NOW).unwrap();
        let text = files::read(&path).unwrap();
        assert!(!text.contains(&reader) && !text.contains(&admin), "{text}");
        let table = TokenTable::parse(&path, &text).unwrap();
        let bearer = table.check(&reader, NOW).unwrap();
        assert_eq!((bearer.name.as_str(), bearer.role), ("grafana", Role::User));
        assert_eq!(table.check(&admin, NOW).unwrap().role, Role::Admin);
        let later = NOW.saturating_add(90 * DAY_NS);
        assert_eq!(
            table.check(&reader, later),
            Err(BadToken::Expired(bearer.clone(), "2026-05-01T12:00:00Z".to_owned()))
        );
        assert!(table.still_counts(&bearer, NOW) && !table.still_counts(&bearer, later));
        for wrong in ["", "x", &reader[1..], &format!("{reader}x"), &entry.sha256] {
            assert_eq!(table.check(wrong, NOW), Err(BadToken::Unknown), "{wrong}");
        }
        let revoked = revoke(&path, &entry.id, NOW).unwrap();
        assert_eq!((revoked.len(), revoked[0].revoked.as_deref()), (1, Some("2026-01-31T12:00:00Z")));
        let table = TokenTable::parse(&path, &files::read(&path).unwrap()).unwrap();
        assert!(matches!(table.check(&reader, NOW), Err(BadToken::Revoked(..))));
        assert!(!table.still_counts(&bearer, NOW) && table.check(&admin, NOW).is_ok());
        assert!(revoke(&path, "grafana", NOW).unwrap_err().to_string().contains("is revoked already"));
        assert!(revoke(&path, "nobody", NOW).unwrap_err().to_string().contains("does not exist"));
    }

    #[test]
    fn errors_of_files_name_the_line_and_not_its_content() {
        let path = Path::new("tokens");
        let (_, entry) = make(&new("x", Role::User, None), NOW).unwrap();
        let bad_hash = line(&TokenEntry { sha256: "zz".to_owned(), ..entry.clone() });
        let bad_time = line(&TokenEntry { expires: Some("soon".to_owned()), ..entry.clone() });
        for (text, expected) in [
            ("# none\nsecret-in-clear-text", "tokens: line 2: not a token's entry"),
            ("{\"id\":\"secret-one\"}", "tokens: line 1: not a token's entry: missing field"),
            ("{secret-two", "tokens: line 1: not a token's entry"),
            (&bad_hash, "tokens: line 1: sha256 is not"),
            (&bad_time, "tokens: line 1: \"soon\" is not a time"),
            (&line(&entry).repeat(2), "tokens: line 2: token"),
        ] {
            let error = TokenTable::parse(path, text).unwrap_err().to_string();
            assert!(error.starts_with(expected) && !error.contains("secret"), "{error:?} is not {expected:?}");
        }
        assert_eq!(TokenTable::parse(path, "").unwrap().len(), 0);
    }
}
