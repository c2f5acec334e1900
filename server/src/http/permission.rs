//! Permissions beyond those of the route, and their entries in the audit log.

use std::net::{Ipv4Addr, SocketAddr};

use axum::extract::Extension;
use axum::http::StatusCode;

use super::serve::PeerAddress;
use super::{Api, ApiError};
use crate::access::audit::{AuditEntry, AuditEvent, AuditOutcome};
use crate::access::tokens::Bearer;
use crate::access::{Permission, bearer_name};

/// Writes a manager's change to the audit log.
pub(super) fn audit_change(api: &Api, bearer: &Bearer, peer: Option<&Extension<PeerAddress>>, what: &str, done: bool) {
    let outcome = if done { AuditOutcome::Ok } else { AuditOutcome::Refused };
    let from = peer.map_or_else(|| "unknown".to_owned(), |Extension(PeerAddress(address))| address.to_string());
    api.security.audit.always(AuditEntry::new(AuditEvent::Manage, outcome, &bearer_name(bearer), from, what));
}

/// Counts and logs a request that the role does not allow.
pub(super) fn forbidden(api: &Api, bearer: &Bearer, peer: SocketAddr, permission: Permission) -> ApiError {
    api.metrics.http_forbidden.inc();
    let what = format!("{} may not {}", bearer.role, permission.doing());
    api.security.audit.bounded(AuditEvent::HttpRequest, AuditOutcome::Refused, &bearer_name(bearer), peer, &what);
    let Bearer { name, role, .. } = bearer;
    let message = format!(
        "token {name:?} has role {role}, which may not {}; a token of role {} may",
        permission.doing(),
        permission.roles()
    );
    ApiError::new(StatusCode::FORBIDDEN, message)
}

/// Requires more than the route does, for one method.
pub(super) fn require(
    api: &Api,
    bearer: &Bearer,
    peer: Option<SocketAddr>,
    permission: Permission,
) -> Result<(), ApiError> {
    let peer = peer.unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    if bearer.role.may(permission) { Ok(()) } else { Err(forbidden(api, bearer, peer, permission)) }
}
