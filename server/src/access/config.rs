//! `[[mqtt.acl]]`: topics granted beyond the defaults; `[security]`: limits and files of authentication and audit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::size::ByteSize;
use wholegrain_model::{Interval, SensorPath};
use wholegrain_transport::mqtt;

use super::filter::IDENTITY;
use crate::settings::settings;

/// In `[[mqtt.acl]]`: unauthenticated clients.
pub const ANONYMOUS: &str = "anonymous";
/// In `[[mqtt.acl]]`: every authenticated identity.
pub const EVERYBODY: &str = "*";
/// The most lines of `[[mqtt.acl]]`.
pub const ACL_LINES_MAX: usize = 100_000;
/// The most filters of one line, separately for publish and subscribe.
pub const ACL_FILTERS_MAX: usize = 1024;

/// Default name of the audit log in the data directory.
pub const AUDIT_FILE: &str = "audit.jsonl";
/// Default name of the file of revoked certificates, beside server.toml.
pub const REVOKED_FILE: &str = "revoked";
/// Minimum and maximum size of one file of the audit log, in bytes.
pub const AUDIT_BYTES: (u64, u64) = (64 << 10, 4 << 30);
pub const AUDIT_FILES_MAX: usize = 1000;
/// Minimum and maximum wait after failed logins.
pub const LOGIN_TIME: (Interval, Interval) = (Interval::from_ms(100), Interval::from_s(86_400));
/// The most failed logins without a wait.
pub const LOGIN_FAILURES_MAX: u32 = 1_000_000;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AclLine {
    /// An identity, `*` for every authenticated one, or `anonymous` for clients without authentication.
    pub identity: String,
    /// Topic filters for publishing; `%i` stands for the identity.
    #[serde(default)]
    pub publish: Vec<String>,
    /// Topic filters for subscribing.
    #[serde(default)]
    pub subscribe: Vec<String>,
}

/// The configuration of [`super::Access`].
#[derive(Debug, Clone, Default)]
pub struct AccessConfig {
    /// Whether unauthenticated clients are accepted.
    pub anonymous: bool,
    /// `[mqtt.prefixes]`: subtrees in which these agents publish instead of their own.
    pub prefixes: BTreeMap<String, Vec<SensorPath>>,
    pub acl: Vec<AclLine>,
}

/// Checks the lines of `[[mqtt.acl]]`.
pub(crate) fn check_acl(lines: &[AclLine], anonymous: bool, section: &Section) -> Result<(), ConfigError> {
    let refuse = |message: String| Err(section.error("acl", message));
    if lines.len() > ACL_LINES_MAX {
        return refuse(format!("has {} lines; at most {ACL_LINES_MAX} are allowed", lines.len()));
    }
    for line in lines {
        let whose = format!("the line for {:?}", line.identity);
        if line.identity.is_empty() || line.identity.contains('/') {
            return refuse(format!("{whose}: identity is the name of an agent or user, \"*\", or \"anonymous\""));
        }
        if line.identity == ANONYMOUS && !anonymous {
            return refuse(format!(
                "{whose} has no effect: mqtt.anonymous is false; set it to true or remove the line"
            ));
        }
        if line.publish.is_empty() && line.subscribe.is_empty() && line.identity != ANONYMOUS {
            return refuse(format!(
                "{whose} grants nothing; give publish or subscribe, such as publish = [\"/site/#\"]"
            ));
        }
        if line.publish.len().max(line.subscribe.len()) > ACL_FILTERS_MAX {
            return refuse(format!("{whose} has over {ACL_FILTERS_MAX} filters"));
        }
        for filter in line.publish.iter().chain(&line.subscribe) {
            if filter.starts_with("$share/") {
                return refuse(format!("{whose}: {filter:?}: for a shared subscription write its filter alone"));
            }
            if !mqtt::valid_filter(&filter.replace(IDENTITY, "i")) {
                return refuse(format!(
                    "{whose}: {filter:?} is not a topic filter; write one such as \"/site/+/power/#\""
                ));
            }
        }
    }
    Ok(())
}

/// File and limits of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// `None` for no audit log.
    pub path: Option<PathBuf>,
    /// The size at which a file is rotated.
    pub bytes_max: u64,
    /// The number of files, the current one included.
    pub files_max: usize,
}

/// When failures begin to cost time, and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginLimits {
    /// Failures of one user at one address without a wait.
    pub user_failures_free: u32,
    /// Failures at one address, or of one user anywhere, without a wait.
    pub source_failures_free: u32,
    /// The first wait; it doubles with each further failure.
    pub delay: Duration,
    pub delay_max: Duration,
    /// Failures are dropped after this time without another one.
    pub forget_after: Duration,
}

impl Default for LoginLimits {
    fn default() -> Self {
        Self {
            user_failures_free: 5,
            source_failures_free: 30,
            delay: Duration::from_secs(1),
            delay_max: Duration::from_secs(300),
            forget_after: Duration::from_secs(900),
        }
    }
}

/// Everything that [`super::Security`] needs, of several sections.
#[derive(Debug, Clone)]
pub struct SecuritySettings {
    pub access: AccessConfig,
    /// Users in server.toml itself, and their password hashes.
    pub users: BTreeMap<String, String>,
    /// A file of more users.
    pub password_file: Option<PathBuf>,
    /// Hashes of bearer tokens; `None` without HTTPS.
    pub tokens_file: Option<PathBuf>,
    pub security: SecurityConfig,
}

#[derive(Debug, Clone)]
pub struct SecurityConfig {
    pub audit: AuditConfig,
    /// Waits after failed logins.
    pub logins: LoginLimits,
    /// Revoked certificates; the file may be missing.
    pub revoked_file: PathBuf,
}

settings! {
    #[derive(Deserialize, Default)]
    #[serde(deny_unknown_fields, default)]
    pub(crate) struct RawSecurity {
        audit_file: Option<PathBuf> = restart,
        audit_bytes_max: Option<ByteSize> = restart,
        audit_files_max: Option<usize> = restart,
        login_failures_free: Option<u32> = reload,
        login_source_failures_free: Option<u32> = reload,
        login_delay: Option<Interval> = reload,
        login_delay_max: Option<Interval> = reload,
        login_forget_after: Option<Interval> = reload,
        revoked_file: Option<PathBuf> = reload,
    }
}

impl RawSecurity {
    fn revoked_file(&self, base: &Path) -> PathBuf {
        base.join(self.revoked_file.as_deref().unwrap_or(Path::new(REVOKED_FILE)))
    }

    fn audit_path(&self, base: &Path, data: &Path) -> Option<PathBuf> {
        match &self.audit_file {
            Some(off) if off.as_os_str() == "off" => None,
            Some(path) => Some(base.join(path)),
            None => Some(data.join(AUDIT_FILE)),
        }
    }

    /// Checks the section; relative paths are relative to `base`; `data` is the server's data directory.
    pub(crate) fn check(self, section: &Section, base: &Path, data: &Path) -> Result<SecurityConfig, ConfigError> {
        let defaults = LoginLimits::default();
        let time = |key: &str, given: Option<Interval>, default| match given {
            Some(value) if !(LOGIN_TIME.0..=LOGIN_TIME.1).contains(&value) => {
                Err(section.error(key, format!("is {value}; write {} to {}", LOGIN_TIME.0, LOGIN_TIME.1)))
            }
            given => Ok(given.map_or(default, Interval::duration)),
        };
        let number = |key: &str, value: u64, (least, most): (u64, u64)| match value {
            value if (least..=most).contains(&value) => Ok(value),
            value => Err(section.error(key, format!("is {value}; write {least} to {most}"))),
        };
        let failures = (0, u64::from(LOGIN_FAILURES_MAX));
        let user_free = self.login_failures_free.unwrap_or(defaults.user_failures_free);
        let source_free = self.login_source_failures_free.unwrap_or(defaults.source_failures_free);
        let logins = LoginLimits {
            user_failures_free: number("login_failures_free", user_free.into(), failures)? as u32,
            source_failures_free: number("login_source_failures_free", source_free.into(), failures)? as u32,
            delay: time("login_delay", self.login_delay, defaults.delay)?,
            delay_max: time("login_delay_max", self.login_delay_max, defaults.delay_max)?,
            forget_after: time("login_forget_after", self.login_forget_after, defaults.forget_after)?,
        };
        let path = self.audit_path(base, data);
        let bytes = self.audit_bytes_max.unwrap_or(ByteSize::mib(16)).0;
        let files = self.audit_files_max.unwrap_or(8);
        let audit = AuditConfig {
            path,
            bytes_max: number("audit_bytes_max", bytes, AUDIT_BYTES)?,
            files_max: number("audit_files_max", files as u64, (1, AUDIT_FILES_MAX as u64))? as usize,
        };
        Ok(SecurityConfig { audit, logins, revoked_file: self.revoked_file(base) })
    }
}
