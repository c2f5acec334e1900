//! Errors of units, and the bounds of codes.

use super::dimension::Dimension;

/// The longest code, in bytes.
pub const CODE_BYTES_MAX: usize = 256;
/// The deepest nesting of parentheses.
pub const DEPTH_MAX: usize = 16;
/// The largest exponent in a code.
pub const EXPONENT_MAX: i32 = 99;

/// Why a code is not a unit, or cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("unit {code:?}, at {}: {reason}{}", at + 1, suggest(.suggestion.as_deref()))]
    Code {
        code: String,
        /// The offset of the invalid part, in bytes.
        at: usize,
        reason: String,
        /// A similar valid code.
        suggestion: Option<String>,
    },
    #[error("{from} ({from_dimension}) cannot be converted to {to} ({to_dimension})")]
    Mismatch { from: String, from_dimension: Dimension, to: String, to_dimension: Dimension },
    /// A bound is exceeded.
    #[error("unit {code:?}: {reason}")]
    Beyond {
        /// The code or its beginning.
        code: String,
        reason: &'static str,
    },
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map(|code| format!("; did you mean `{code}`?")).unwrap_or_default()
}

impl UnitError {
    /// The offset of the invalid part of the code, in bytes.
    pub fn at(&self) -> Option<usize> {
        match self {
            UnitError::Code { at, .. } => Some(*at),
            _ => None,
        }
    }
}
