//! The failure of a request.

use crate::manager::ManagerError;

/// The HTTP status and the reason.
pub(super) struct HttpFailure(pub u16, pub String);

impl HttpFailure {
    pub fn new(status: u16, why: impl Into<String>) -> Self {
        Self(status, why.into())
    }
}

impl From<ManagerError> for HttpFailure {
    fn from(refusal: ManagerError) -> Self {
        let status = match refusal {
            ManagerError::Unknown(_) => 404,
            ManagerError::Invalid(_) => 422,
            ManagerError::Forbidden(_) => 403,
            ManagerError::Busy | ManagerError::Failed(_) => 503,
        };
        HttpFailure(status, refusal.to_string())
    }
}
