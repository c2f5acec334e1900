//! Permissions of callers.

use std::collections::HashMap;
use std::sync::Arc;

use wholegrain_model::SensorPath;

use super::http::HttpRequest;
use crate::jobs::{CallerIdentity, JobView, JobsView, Role};

/// The rights of users, for the response to other requests.
const USERS_MAY: &str = "users may GET /v1/jobs, /v1/jobs/ID, /v1/rules, /v1/sensors, /v1/newest, /v1/average and /v1/history of \
                         their own jobs, POST /v1/rules and DELETE /v1/rules/ID";

/// Checks that the caller may send this request; [`AccessScope`] then limits the response.
pub(super) fn check(who: &CallerIdentity, request: &HttpRequest) -> Result<(), String> {
    let path = request.path.trim_end_matches('/');
    let reads = matches!(request.method.as_str(), "GET" | "HEAD");
    let (shown, method) = (path.chars().take(100).collect::<String>(), &request.method);
    match who.role {
        Role::Admin => Ok(()),
        Role::Support if reads => Ok(()),
        Role::Support => {
            Err(format!("the role support reads everything and changes nothing: {method} {shown} is not for it"))
        }
        Role::User => {
            let below =
                |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            let may = match request.method.as_str() {
                "GET" | "HEAD" => {
                    matches!(path, "/v1/sensors" | "/v1/newest" | "/v1/average" | "/v1/history")
                        || below("/v1/jobs")
                        || below("/v1/rules")
                }
                "POST" => path == "/v1/rules",
                "DELETE" => below("/v1/rules"),
                _ => false,
            };
            if may { Ok(()) } else { Err(format!("{method} {shown} is for administrators; {USERS_MAY}")) }
        }
    }
}

/// The sensors that a caller may see.
#[derive(Debug)]
pub(super) enum AccessScope<'a> {
    All,
    /// Those of their own running jobs: the begin of the job at each level, because an earlier job may have had the same level.
    Jobs {
        prefix: &'a SensorPath,
        begins: HashMap<String, i64>,
    },
}

impl<'a> AccessScope<'a> {
    pub fn of(who: &CallerIdentity, jobs: &JobsView, prefix: &'a SensorPath) -> Self {
        if who.role != Role::User {
            return Self::All;
        }
        let (own, others): (Vec<&Arc<JobView>>, Vec<&Arc<JobView>>) =
            jobs.jobs.iter().partition(|job| job.is_owned_by(who));
        let mut begins: HashMap<String, i64> =
            own.iter().map(|job| (job.record.level.clone(), job.record.from)).collect();
        // Jobs of different owners can share a level: then the owner of a sensor is unknown.
        others.iter().for_each(|job| _ = begins.remove(&job.record.level));
        Self::Jobs { prefix, begins }
    }

    /// The time from which the caller may see this sensor's readings; `None` for never.
    pub fn since(&self, path: &str) -> Option<i64> {
        let Self::Jobs { prefix, begins } = self else { return Some(i64::MIN) };
        let (level, _) = path.strip_prefix(prefix.as_str())?.strip_prefix("/job/")?.split_once('/')?;
        begins.get(level).copied()
    }

    pub fn includes(&self, path: &str) -> bool {
        self.since(path).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_ask_what() {
        let may = |role, line: &str| {
            let (method, path) = line.split_once(' ').unwrap();
            let who = CallerIdentity { name: "x".into(), role, uid: Some(1000), user: None, pid: None };
            let request = HttpRequest { method: method.into(), path: path.into(), ..HttpRequest::default() };
            check(&who, &request).is_ok()
        };
        let reads_of_jobs = [
            "GET /v1/jobs",
            "GET /v1/jobs/4711",
            "GET /v1/rules",
            "GET /v1/sensors",
            "GET /v1/newest",
            "GET /v1/average",
            "GET /v1/history",
        ];
        let changes_of_rules = ["POST /v1/rules", "DELETE /v1/rules/10001"];
        let reads =
            ["GET /v1/status", "GET /v1/log", "GET /v1/sources", "GET /v1/groups", "GET /v1/new", "HEAD /v1/status"];
        let changes = [
            "POST /v1/log",
            "POST /v1/reload",
            "POST /v1/sources/procfs/stop",
            "POST /v1/sources/procfs/start",
            "POST /v1/groups/meminfo/interval",
            "POST /v1/rules/1",
            "POST /v1/jobs",
            "DELETE /v1/jobs/4711",
            "PUT /v1/rules",
            "DELETE /v1/rulesx",
            "POST //v1/rules",
        ];
        for line in reads_of_jobs {
            assert!([Role::Admin, Role::Support, Role::User].iter().all(|role| may(*role, line)), "{line}");
        }
        for line in changes_of_rules {
            assert!(may(Role::Admin, line) && !may(Role::Support, line) && may(Role::User, line), "{line}");
        }
        for line in reads {
            assert!(may(Role::Admin, line) && may(Role::Support, line) && !may(Role::User, line), "{line}");
        }
        for line in changes {
            assert!(may(Role::Admin, line) && !may(Role::Support, line) && !may(Role::User, line), "{line}");
        }
    }
}
