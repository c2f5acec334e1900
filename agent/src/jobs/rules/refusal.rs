//! Refused commands about rules.

/// Why a command was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobsRefusal {
    #[error("{0}")]
    Forbidden(String),
    /// The job, the metric or the rule does not exist.
    #[error("{0}")]
    Unknown(String),
    /// The command is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A limit forbids it.
    #[error("{why}; the limit {limit} is {value}")]
    Limit {
        /// A name of `[jobs.limits]`, or of a fixed limit.
        limit: &'static str,
        value: String,
        /// The part of the command that is over the limit.
        why: String,
    },
    /// The disk or the agent failed.
    #[error("{0}")]
    Failed(String),
}

impl JobsRefusal {
    pub fn status(&self) -> u16 {
        match self {
            Self::Forbidden(_) => 403,
            Self::Unknown(_) => 404,
            Self::Invalid(_) | Self::Limit { .. } => 422,
            Self::Failed(_) => 503,
        }
    }
}
