//! The caller of a connection.

use std::cell::RefCell;
use std::sync::Arc;

use super::tokens::AcceptedTokens;
use super::unauthenticated::ClientAdmission;
use crate::jobs::CallerIdentity;

pub(super) enum ApiCaller {
    /// Identified by the file system or the kernel.
    Known(CallerIdentity),
    /// Identified by the token of each request.
    ByToken {
        peer: String,
        tokens: Arc<AcceptedTokens>,
        /// Whether a request had a valid token.
        admission: RefCell<ClientAdmission>,
    },
}

impl ApiCaller {
    /// Whether the caller is identified.
    pub fn is_known(&self) -> bool {
        match self {
            ApiCaller::Known(_) => true,
            ApiCaller::ByToken { admission, .. } => admission.borrow().is_known(),
        }
    }
}
