//! The routes: paths, required permissions, handlers.

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::Method;
use axum::routing::{MethodRouter, get, post};
use wholegrain_api::paths;

use super::Api;
use super::{
    admin, data, import, job_energy, job_statistics, jobs, losses, maintenance, names, otlp, prometheus, properties,
    query, read, remote_write, rules, status, virtuals, watch, write,
};
use crate::access::Permission;

/// A route: path, required permissions, handlers.
pub(crate) type Route = (&'static str, RoutePermissions, MethodRouter<Arc<Api>>);

/// The permissions that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoutePermissions {
    pub read: Permission,
    pub change: Permission,
}

impl RoutePermissions {
    const fn new(read: Permission, change: Permission) -> Self {
        Self { read, change }
    }

    const fn all(permission: Permission) -> Self {
        Self::new(permission, permission)
    }

    pub fn of(self, method: &Method) -> Permission {
        if matches!(*method, Method::GET | Method::HEAD) { self.read } else { self.change }
    }
}

/// All routes, each with its permissions and its handlers.
pub(crate) fn routes() -> Vec<Route> {
    use Permission::{Manage, Open, Read, Status, Steer, Write};
    vec![
        (paths::SENSORS, RoutePermissions::all(Read), get(read::sensors)),
        (paths::NAMES, RoutePermissions::all(Read), get(names::names)),
        (paths::NEWEST, RoutePermissions::all(Read), get(read::newest)),
        (paths::QUERY, RoutePermissions::all(Read), get(query::query)),
        (paths::WATCH, RoutePermissions::all(Read), get(watch::watch)),
        (paths::PROMETHEUS_READ, RoutePermissions::all(Read), post(prometheus::read)),
        (
            paths::PROPERTIES,
            RoutePermissions::new(Read, Manage),
            get(properties::show).put(properties::set).delete(properties::unset),
        ),
        (paths::PROPERTY_SETTINGS, RoutePermissions::all(Read), get(properties::settings)),
        (paths::PROPERTY_HISTORY, RoutePermissions::all(Read), get(properties::history)),
        (paths::JOBS, RoutePermissions::all(Read), get(jobs::jobs)),
        (paths::JOB, RoutePermissions::all(Read), get(jobs::job)),
        (paths::JOB_STATISTICS, RoutePermissions::all(Read), get(job_statistics::statistics)),
        (paths::JOB_ENERGY, RoutePermissions::all(Read), get(job_energy::energy)),
        (
            paths::JOB_RULES,
            RoutePermissions::new(Read, Steer),
            get(rules::show).post(rules::add).delete(rules::end).layer(DefaultBodyLimit::max(rules::BODY_BYTES_MAX)),
        ),
        (paths::IMPORT, RoutePermissions::new(Status, Manage), get(import::show).post(import::import)),
        (
            paths::VIRTUAL,
            RoutePermissions::new(Read, Manage),
            get(virtuals::list)
                .put(virtuals::define)
                .post(virtuals::check)
                .delete(virtuals::remove)
                .layer(DefaultBodyLimit::max(virtuals::BODY_BYTES_MAX)),
        ),
        (paths::VIRTUAL_HISTORY, RoutePermissions::all(Status), get(virtuals::history)),
        (paths::WRITE_INFLUX, RoutePermissions::all(Write), post(write::influx)),
        ("/api/v2/write", RoutePermissions::all(Write), post(write::influx)),
        ("/write", RoutePermissions::all(Write), post(write::influx)),
        (paths::WRITE_CLUSTERCOCKPIT, RoutePermissions::all(Write), post(write::clustercockpit)),
        ("/api/write/", RoutePermissions::all(Write), post(write::clustercockpit)),
        (paths::WRITE_PROMETHEUS, RoutePermissions::all(Write), post(remote_write::write)),
        ("/api/v1/write", RoutePermissions::all(Write), post(remote_write::write)),
        (paths::WRITE_OTLP, RoutePermissions::all(Write), post(otlp::metrics)),
        ("/v1/metrics", RoutePermissions::all(Write), post(otlp::metrics)),
        (
            paths::RETENTION,
            RoutePermissions::new(Status, Manage),
            get(data::retention).put(data::set_retention).delete(data::unset_retention),
        ),
        (paths::DELETE, RoutePermissions::all(Manage), post(data::delete)),
        (paths::STATISTICS, RoutePermissions::all(Status), get(data::stats)),
        (paths::LOST, RoutePermissions::new(Status, Manage), get(losses::list).post(losses::acknowledge)),
        (
            paths::COMPACT,
            RoutePermissions::new(Status, Manage),
            get(maintenance::show).post(maintenance::begin).delete(maintenance::end),
        ),
        (
            paths::VERIFY,
            RoutePermissions::new(Status, Manage),
            get(maintenance::show).post(maintenance::begin).delete(maintenance::end),
        ),
        (
            paths::REPAIR,
            RoutePermissions::new(Status, Manage),
            get(maintenance::show).post(maintenance::begin).delete(maintenance::end),
        ),
        (
            paths::BACKUP,
            RoutePermissions::all(Manage),
            post(data::backup).layer(DefaultBodyLimit::max(data::HAVE_BYTES_MAX)),
        ),
        (paths::LOG, RoutePermissions::new(Status, Manage), get(admin::log).put(admin::set_log)),
        (paths::RELOAD, RoutePermissions::all(Manage), post(admin::reload)),
        (paths::HEALTHZ, RoutePermissions::all(Open), get(status::healthz)),
        // Where InfluxDB clients check that the server exists.
        ("/ping", RoutePermissions::all(Open), get(status::ping)),
        ("/health", RoutePermissions::all(Open), get(status::health)),
        (paths::METRICS, RoutePermissions::all(Status), get(status::metrics)),
        (paths::OPENAPI, RoutePermissions::all(Open), get(status::openapi)),
    ]
}

pub(super) fn route(path: &str) -> Option<(&'static str, RoutePermissions)> {
    static TABLE: std::sync::LazyLock<Vec<(&'static str, RoutePermissions)>> =
        std::sync::LazyLock::new(|| routes().iter().map(|(path, wants, _)| (*path, *wants)).collect());
    TABLE.iter().find(|(known, _)| matches_route(path, known)).copied()
}

/// Whether a path matches a route, in which `{…}` stands for one non-empty level.
fn matches_route(path: &str, route: &str) -> bool {
    let (mut levels, mut wanted) = (path.split('/'), route.split('/'));
    loop {
        match (levels.next(), wanted.next()) {
            (None, None) => return true,
            (Some(level), Some(wanted)) if level == wanted => {}
            (Some(level), Some(wanted)) if wanted.starts_with('{') && !level.is_empty() => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_in_braces_stands_for_any() {
        for (path, expected) in [
            ("/api/v1/jobs", Some("/api/v1/jobs")),
            ("/api/v1/jobs/4711", Some("/api/v1/jobs/{id}")),
            ("/api/v1/jobs/a%2Fb", Some("/api/v1/jobs/{id}")),
            ("/api/v1/jobs/", None),
            ("/api/v1/jobs/1/2/3", None),
            ("/api/v1/sensors/x", None),
        ] {
            assert_eq!(route(path).map(|(route, _)| route), expected, "{path}");
        }
    }
}
