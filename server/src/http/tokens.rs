//! Bearer tokens: who may call.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use axum::http::{HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use super::ApiError;

/// How often the file is looked at again: a token that was added or removed counts after this at the latest.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The shortest token that is taken, in bytes.
const TOKEN_BYTES_MIN: usize = 16;

type Hash = [u8; 32];

/// The tokens of a file: one a line, what follows it on the line is a remark, `#` begins a comment.
#[derive(Debug)]
pub(crate) struct Tokens {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    hashes: Vec<Hash>,
    modified: Option<SystemTime>,
    looked: Instant,
}

impl Tokens {
    /// Reads the file, which must be there.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let modified = modified(path);
        let hashes = read(path)?;
        Ok(Self { path: path.to_owned(), state: Mutex::new(State { hashes, modified, looked: Instant::now() }) })
    }

    /// Checks an `Authorization` header.
    pub fn check(&self, header: Option<&HeaderValue>) -> Result<(), ApiError> {
        let refuse = |message: &str| Err(ApiError::new(StatusCode::UNAUTHORIZED, message));
        let Some(header) = header else {
            return refuse("no token; send the header `Authorization: Bearer <token>`");
        };
        let Some(token) = header.to_str().ok().and_then(bearer) else {
            return refuse("the Authorization header is not `Bearer <token>`");
        };
        if self.is_known(token) {
            Ok(())
        } else {
            refuse("unknown token; the server's tokens_file lists those that count")
        }
    }

    fn is_known(&self, token: &str) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK_EVERY {
            state.looked = Instant::now();
            let modified = modified(&self.path);
            if modified != state.modified {
                match read(&self.path) {
                    Ok(hashes) => (state.hashes, state.modified) = (hashes, modified),
                    Err(error) => tracing::warn!("{error:#}; the tokens read before still count"),
                }
            }
        }
        // Hashes are compared, all of them: how long that takes says nothing about a token's bytes.
        let hash = hash(token);
        state.hashes.iter().fold(false, |found, known| found | (*known == hash))
    }
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn hash(token: &str) -> Hash {
    Sha256::digest(token).into()
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

fn read(path: &Path) -> anyhow::Result<Vec<Hash>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read http.tokens_file {}", path.display()))?;
    let mut hashes = Vec::new();
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line.trim())) {
        let Some(token) = line.split_whitespace().next().filter(|token| !token.starts_with('#')) else { continue };
        if token.len() < TOKEN_BYTES_MIN {
            anyhow::bail!(
                "{}:{number}: a token of under {TOKEN_BYTES_MIN} bytes can be guessed; take a longer one",
                path.display()
            );
        }
        hashes.push(hash(token));
    }
    if hashes.is_empty() {
        anyhow::bail!(
            "{} holds no token; write at least one, such as the output of `openssl rand -base64 32`",
            path.display()
        );
    }
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_headers_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        for (text, expected) in [
            ("", "holds no token"),
            ("# x\n\n", "holds no token"),
            ("ok-ok-ok-ok-ok-ok\nshort", ":2: a token of under"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", Tokens::load(&path).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        std::fs::write(&path, "# admins\nfirst-token-of-16+ for grafana\nsecond-token-of-16+\n").unwrap();
        let tokens = Tokens::load(&path).unwrap();
        for (header, ok) in [
            ("Bearer first-token-of-16+", true),
            ("bearer second-token-of-16+", true),
            ("Bearer for", false),
            ("Bearer ", false),
            ("Basic first-token-of-16+", false),
            ("first-token-of-16+", false),
            ("Bearer first-token-of-16", false),
        ] {
            assert_eq!(tokens.check(Some(&HeaderValue::from_static(header))).is_ok(), ok, "{header}");
        }
        assert_eq!(tokens.check(None).unwrap_err().status, StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn a_token_that_is_removed_stops_counting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, "first-token-of-16+\n").unwrap();
        let tokens = Tokens::load(&path).unwrap();
        std::fs::write(&path, "second-token-of-16+\n").unwrap();
        let later = SystemTime::now() + Duration::from_secs(10);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        tokens.state.lock().unwrap().looked = Instant::now().checked_sub(LOOK_EVERY).unwrap();
        assert!(!tokens.is_known("first-token-of-16+"));
        assert!(tokens.is_known("second-token-of-16+"));
    }
}
