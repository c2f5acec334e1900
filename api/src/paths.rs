//! The paths of the API.

pub const SENSORS: &str = "/api/v1/sensors";
pub const NAMES: &str = "/api/v1/names";
pub const NEWEST: &str = "/api/v1/newest";
pub const QUERY: &str = "/api/v1/query";
pub const WATCH: &str = "/api/v1/watch";
pub const PROMETHEUS_READ: &str = "/api/v1/prometheus/read";
pub const PROPERTIES: &str = "/api/v1/properties";
pub const PROPERTY_SETTINGS: &str = "/api/v1/properties/settings";
pub const PROPERTY_HISTORY: &str = "/api/v1/properties/history";
pub const JOBS: &str = "/api/v1/jobs";
pub const JOB: &str = "/api/v1/jobs/{id}";
pub const JOB_STATISTICS: &str = "/api/v1/jobs/{id}/statistics";
pub const JOB_ENERGY: &str = "/api/v1/jobs/{id}/energy";
pub const JOB_RULES: &str = "/api/v1/jobs/{id}/rules";
pub const IMPORT: &str = "/api/v1/import";
pub const VIRTUAL: &str = "/api/v1/virtual";
pub const VIRTUAL_HISTORY: &str = "/api/v1/virtual/history";
pub const WRITE_INFLUX: &str = "/api/v1/write/influx";
pub const WRITE_PROMETHEUS: &str = "/api/v1/write/prometheus";
pub const WRITE_OTLP: &str = "/api/v1/write/otlp";
pub const WRITE_CLUSTERCOCKPIT: &str = "/api/v1/write/clustercockpit";
pub const RETENTION: &str = "/api/v1/data/retention";
pub const DELETE: &str = "/api/v1/data/delete";
pub const STATISTICS: &str = "/api/v1/data/stats";
pub const LOST: &str = "/api/v1/data/lost";
pub const COMPACT: &str = "/api/v1/data/compact";
pub const VERIFY: &str = "/api/v1/data/verify";
pub const REPAIR: &str = "/api/v1/data/repair";
pub const BACKUP: &str = "/api/v1/data/backup";
pub const LOG: &str = "/api/v1/server/log";
pub const RELOAD: &str = "/api/v1/server/reload";
pub const HEALTHZ: &str = "/healthz";
pub const METRICS: &str = "/metrics";
pub const OPENAPI: &str = "/openapi.json";

/// A path of one job: `path` with the job's id, which must be percent-encoded, in place of `{id}`.
pub fn of_job(path: &str, id: &str) -> String {
    path.replace("{id}", id)
}
