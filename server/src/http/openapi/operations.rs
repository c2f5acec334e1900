//! What each operation takes and returns, in words and types.

use schemars::SchemaGenerator;
use serde_json::{Value, json};
use wholegrain_api::{self as api, paths};

use super::{Operation, Parameter, integer, one_of, operation, query, reference, required, text, with_default};

/// Every operation of the API.
pub(super) fn operations(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let groups =
        [sensors, readings, properties, jobs, job_rules, virtuals, imports, writes, stored_data, maintenance, server];
    groups.into_iter().flat_map(|group| group(schemas)).collect()
}

fn pattern() -> Parameter {
    reference("parameters", "pattern")
}

fn pattern_optional() -> Parameter {
    reference("parameters", "patternOptional")
}

fn dry_run() -> Parameter {
    reference("parameters", "dryRun")
}

fn job_id() -> Parameter {
    reference("parameters", "job")
}

fn page_limit(of: &str, max: u64, default: u64) -> Parameter {
    query("limit", integer(1, max, default), &format!("The most {of} in a page"))
}

fn after() -> Parameter {
    query("after", text(), "`next` of the previous page")
}

fn at() -> Parameter {
    query("at", text(), "Selects one of several runs with the same id: the newest that began by this time")
}

fn page_headers() -> Value {
    json!({ "X-Wholegrain-Sensors": reference("headers", "sensors"), "X-Wholegrain-Next": reference("headers", "next") })
}

fn format(formats: &[&str]) -> Parameter {
    query("format", with_default(one_of(formats), "json"), "The format of the response")
}

fn sensors(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    vec![
        operation("get", paths::SENSORS, "sensors", "List sensors")
            .parameters([
                pattern_optional(),
                query("job", text(), "Only sensors of this job, of its CPUs and devices, and of its nodes as a whole"),
                at(),
                page_limit("sensors", 100_000, 10_000),
                after(),
            ])
            .responds::<api::SensorPage>(schemas, "A page of sensors")
            .headers(page_headers())
            .unavailable(),
        operation("get", paths::NAMES, "names", "Complete a sensor's name, or find the nearest name")
            .description("Give exactly one of the parameters.")
            .parameters([
                query("begin", text(), "The beginning of a name. With a leading `/` it is completed by one level; names that end with `/` have \
                    sensors below. Another text is completed to the last levels of paths"),
                query("near", text(), "A pattern that matches no sensor"),
            ])
            .responds::<api::NameList>(schemas, "At most 200 names, sorted; for `near` at most one"),
        operation("get", paths::NEWEST, "newest", "The newest reading of each sensor")
            .parameters([pattern(), page_limit("sensors", 100_000, 10_000), after()])
            .responds::<api::NewestPage>(schemas, "A page of readings")
            .headers(page_headers()),
    ]
}

fn readings(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let line = json!(schemas.subschema_for::<api::QueryLine>());
    let aggregates = ["mean", "min", "max", "sum", "count", "last", "first", "sample_mean"];
    vec![
        operation("get", paths::QUERY, "query", "Readings of a range of time, sorted by sensor and time")
            .parameters([
                pattern(),
                query("from", with_default(text(), "-1h"), "Start of the range, included: RFC 3339, a date, a time with its zone \
                    (2026-01-31 13:00 Europe/Berlin), Unix seconds (@1769860800), `now`, or relative such as -10m"),
                query("to", with_default(text(), "now"), "End of the range, excluded; written as `from`"),
                query("every", text(), "The length of windows, such as 10s; they begin at multiples of it"),
                query("points", json!({ "type": "integer", "minimum": 1, "maximum": 1_000_000 }), "In place of `every`: approximately the number \
                    of windows. For long ranges their length is a multiple of a tier's, and the range is extended to whole windows"),
                query("agg", one_of(&aggregates), "The aggregate of each window, or without windows of the range. `mean` is weighted by time, \
                    `sample_mean` is the arithmetic mean"),
                query("op", one_of(&["rate", "delta", "derivative", "integral"]), "The operation on successive values, before any aggregate"),
                query("across", one_of(&aggregates[..5]), "Combines all sensors into one series: the aggregate of their values in each window, or \
                    at each time. Their units must agree, except for `count`. Notes report rows with values of fewer sensors"),
                query("levels", json!({ "type": "integer", "minimum": 1 }), "With `across`: one series for each group of sensors whose paths have \
                    this number of first levels in common"),
                query("job", text(), "Only sensors of this job, each in the job's time on its node; `from` and `to` default to the job's"),
                at(),
                query("unit", text(), "The unit of the values, after `op` and `agg`: a UCUM code such as kW, kW.h or MiBy/s"),
                query("limit", json!({ "type": "integer", "minimum": 0 }), "The most rows"),
                format(&["json", "csv", "arrow"]),
            ])
            .response("200", json!({ "description": "The rows. A response that breaks off is incomplete. Warnings and notes that arise while rows \
                are read follow as last lines of NDJSON, and after the end of an Arrow stream; CSV breaks off" }))
            .also("application/x-ndjson", line.clone())
            .also("text/csv", json!({ "type": "string", "description": "With the header sensor,time,value; an empty value is a gap" }))
            .also("application/vnd.apache.arrow.stream", json!({ "description": "Arrow IPC stream with the columns sensor (dictionary of utf8), \
                time (timestamp, ns, UTC) and value (float64 or int64)" }))
            .headers(json!({
                "X-Wholegrain-Sensors": reference("headers", "sensors"),
                "X-Wholegrain-Tier": { "description": "The resolution of the tier that is read where possible; absent if readings are read", "schema": text() },
                "X-Wholegrain-Every": { "description": "The length of the windows", "schema": text() },
                "X-Wholegrain-Warning": reference("headers", "warning"),
                "X-Wholegrain-Note": reference("headers", "note"),
            }))
            .unavailable(),
        operation("get", paths::WATCH, "watch", "Readings as they become durable, without end")
            .parameters([pattern()])
            .response("200", json!({ "description": "One reading per line. A client that reads too slowly loses batches" }))
            .also("application/x-ndjson", line)
            .headers(json!({ "X-Wholegrain-Sensors": reference("headers", "sensors") }))
            .unavailable(),
        operation("post", paths::PROMETHEUS_READ, "prometheusRead", "Remote read of Prometheus")
            .description("As in prompb/remote.proto of Prometheus. docs/prometheus.md describes how paths become labels.")
            .body_of(json!({ "required": true, "content": { "application/x-protobuf": { "schema": { "type": "string", "format": "binary",
                "description": "prometheus.ReadRequest compressed with snappy, at most 1 MiB" } } } }))
            .response("200", json!({ "description": "The series; streamed if the request accepts STREAMED_XOR_CHUNKS before SAMPLES" }))
            .also("application/x-protobuf", json!({ "type": "string", "format": "binary", "description": "prometheus.ReadResponse compressed with snappy" }))
            .also("application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse", json!({ "type": "string", "format": "binary",
                "description": "Frames of length (varint), CRC-32C (4 bytes, big endian) and prometheus.ChunkedReadResponse" }))
            .unavailable(),
    ]
}

fn properties(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let names = api::PropertyName::ALL.map(api::PropertyName::name);
    vec![
        operation("get", paths::PROPERTIES, "properties", "Properties of sensors and their origins")
            .parameters([pattern(), page_limit("sensors", 10_000, 10_000), after()])
            .responds::<api::SensorPropertiesPage>(schemas, "A page of sensors")
            .headers(page_headers()),
        operation(
            "put",
            paths::PROPERTIES,
            "setProperties",
            "Set properties of all sensors that match patterns; all settings or none",
        )
        .description("Settings apply to past and future readings. For administrators.")
        .parameters([dry_run(), query("only_new", one_of(&["0", "1"]), "1: keep existing settings of a pattern")])
        .body::<api::SetProperties>(schemas)
        .responds::<api::SetPropertiesResult>(schemas, "The number of properties that were set"),
        operation(
            "delete",
            paths::PROPERTIES,
            "unsetProperties",
            "Remove the settings of one pattern. For administrators",
        )
        .parameters([pattern(), query("property", one_of(&names), "Only this property")])
        .responds::<api::UnsetPropertiesResult>(schemas, "The number of settings that were removed"),
        operation("get", paths::PROPERTY_SETTINGS, "propertySettings", "List the settings of properties")
            .responds::<api::PropertySettings>(schemas, "The settings in force"),
        operation("get", paths::PROPERTY_HISTORY, "propertyHistory", "List all settings and removals of properties")
            .parameters([
                pattern_optional(),
                query("limit", integer(1, 1_000_000, 10_000), "The most changes; the latest are listed"),
            ])
            .responds::<api::PropertyHistory>(schemas, "The changes"),
    ]
}

fn jobs(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    vec![
        operation("get", paths::JOBS, "jobs", "List jobs, the newest first")
            .description("A token of the role user sees only the jobs of the user with its name.")
            .parameters([
                query("user", text(), "A user's name, or a uid"),
                query("node", text(), "A node of the job; `*` matches any text"),
                query("account", text(), "The account of the job"),
                query("partition", text(), "The partition of the job"),
                query("manager", text(), "The resource manager, such as slurm"),
                query("name", text(), "The job's name; `*` matches any text"),
                query("state", one_of(&["running", "ended"]), "Running or ended jobs only"),
                query("from", text(), "Jobs that ran at this time or later; written as in a query"),
                query("to", text(), "Jobs that ran before this time"),
                page_limit("jobs", 10_000, 100),
                after(),
                format(&["json", "csv"]),
            ])
            .responds::<api::JobPage>(schemas, "A page of jobs")
            .also("text/csv", json!({ "type": "string", "description": "With a header; unknown values are empty" }))
            .headers(json!({ "X-Wholegrain-Next": reference("headers", "next") })),
        operation("get", paths::JOB, "job", "A job with the records of all its nodes")
            .parameters([job_id(), at()])
            .responds::<api::JobDetails>(schemas, "The job")
            .fails("404", "noJob"),
        operation("get", paths::JOB_STATISTICS, "jobStatistics", "Statistics of a job's sensors on each node and over the nodes")
            .description("Of gauges the values as read, of counters the rates per second; each value has the same weight.")
            .parameters([
                job_id(),
                pattern(),
                at(),
                query("from", text(), "Start of the range, included. Default: the start of the job"),
                query("to", text(), "End of the range, excluded. Default: the end of the job, or now"),
                query("nodes", json!({ "type": "boolean", "default": true }), "false: only the statistics over the nodes"),
                format(&["json", "csv"]),
            ])
            .responds::<api::JobStatistics>(schemas, "The statistics. A response that breaks off is incomplete")
            .also("text/csv", json!({ "type": "string", "description": "A row without a node is over all nodes" }))
            .headers(json!({ "X-Wholegrain-Sensors": reference("headers", "sensors") }))
            .fails("404", "noJob")
            .unavailable(),
        operation("get", paths::JOB_ENERGY, "jobEnergy", "The energy of a job, how it is shared, and the covered part of the time")
            .description("From sensors of power (gauges in W) or energy (counters in J) of the nodes or of the facility, as set by [jobs] power. \
                Energy is of the covered time only: gaps are not filled.")
            .parameters([
                job_id(),
                at(),
                query("pattern", json!({ "type": "array", "items": text() }), "In place of [jobs] power: a pattern below a node's prefix, or several \
                    joined by ` + `. Of several parameters the first that a node has applies"),
                query("share", with_default(one_of(&["cores", "cpu_time", "all"]), "cores"), "The job's share of a node with other jobs: its part of \
                    the allocated cores, its part of the used CPU time, or all"),
                query("source", one_of(&["node", "facility"]), "Whose sensors. Default: the nodes' if any is measured"),
            ])
            .responds::<api::JobEnergy>(schemas, "The energy. A response that breaks off is incomplete")
            .fails("404", "noJob")
            .unavailable(),
    ]
}

fn job_rules(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let (show, end) = (
        operation(
            "get",
            paths::JOB_RULES,
            "jobRules",
            "The metrics and intervals of a running job on each of its nodes",
        ),
        operation(
            "delete",
            paths::JOB_RULES,
            "endJobRules",
            "End the rules of a job: a user's own, for an administrator all",
        ),
    );
    let summary = "Sample metrics of a running job at another interval for a time, on all its nodes";
    let add = operation("post", paths::JOB_RULES, "addJobRule", summary).parameters([job_id(), dry_run()]);
    let schema = schemas.subschema_for::<api::NodeResponses>();
    let response = |description: &str| json!({ "description": description, "content": { "application/json": { "schema": schema } } });
    let results = |operation: Operation| {
        operation
            .response("200", response("Every node did it"))
            .response("207", response("Some nodes failed"))
            .fails("404", "noJob")
            .fails("409", "conflict")
    };
    [show.parameters([job_id()]), add.body::<api::AddJobRule>(schemas), end.parameters([job_id()])].map(results).into()
}

fn virtuals(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let definition = schemas.subschema_for::<api::VirtualDefinition>();
    let change = schemas.subschema_for::<api::ChangeDefinitions>();
    let body = json!({ "required": true, "content": { "application/json": { "schema": {
        "oneOf": [definition, { "type": "array", "items": definition }, change],
    } } } });
    vec![
        operation("get", paths::VIRTUAL, "virtualSensors", "List the definitions of virtual sensors")
            .description("A token of the role user sees no definitions from other users' jobs only.")
            .parameters([pattern_optional()])
            .responds::<api::VirtualSensorList>(schemas, "The definitions"),
        operation(
            "put",
            paths::VIRTUAL,
            "defineVirtualSensors",
            "Define or redefine virtual sensors; all or none. For administrators",
        )
        .body_of(body.clone())
        .responds::<api::DefinitionsChanged>(schemas, "The change"),
        operation(
            "post",
            paths::VIRTUAL,
            "checkVirtualSensors",
            "Check definitions; change nothing. For administrators",
        )
        .body_of(body)
        .responds::<api::DefinitionsChanged>(schemas, "The change that PUT would make"),
        operation("delete", paths::VIRTUAL, "removeVirtualSensor", "Remove a definition. For administrators")
            .parameters([
                required(query("path", text(), "The path of the definition, of a template with its wildcards")),
                query(
                    "force",
                    one_of(&["0", "1"]),
                    "1: remove it even if other definitions refer to it; their sensors have gaps then",
                ),
            ])
            .responds::<api::DefinitionsChanged>(schemas, "The change"),
        operation(
            "get",
            paths::VIRTUAL_HISTORY,
            "virtualHistory",
            "List all definitions and removals. For administrators and support",
        )
        .parameters([
            query("path", text(), "Of one definition"),
            query("limit", integer(1, 10_000, 1_000), "The most entries; the latest are listed"),
        ])
        .responds::<api::DefinitionHistory>(schemas, "The changes"),
    ]
}

fn imports(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let id = || {
        required(query(
            "id",
            json!({ "type": "string", "maxLength": 64 }),
            "The import's id: printable ASCII without spaces",
        ))
    };
    vec![
        operation("get", paths::IMPORT, "importState", "List the stored parts of an import")
            .parameters([id()])
            .responds::<api::ImportState>(schemas, "The parts"),
        operation("post", paths::IMPORT, "import", "Store a part of an import: all of its past readings or none, and once")
            .parameters([id(), required(query("part", json!({ "type": "integer", "minimum": 0 }), "The number of the part"))])
            .body_of(json!({
                "required": true,
                "description": "One or more concatenated Arrow IPC streams, together at most 4,194,304 rows and 128 MiB, with the columns sensor \
                    (text or a dictionary of it), time (timestamp) and value (int64 or float64; null is a gap), in any order of rows. The later \
                    of two rows with the same sensor and time applies. A sensor is in one stream only. The schema's metadata may have \
                    wholegrain.unit for all sensors, or wholegrain.units and wholegrain.kinds with a line per sensor in the order of the dictionary",
                "content": { "application/vnd.apache.arrow.stream": { "schema": { "type": "string", "contentEncoding": "binary" } } },
            }))
            .responds::<api::ImportedPart>(schemas, "The part is durable")
            .fails("413", "tooLarge")
            .unavailable(),
    ]
}

fn writes(_: &mut SchemaGenerator) -> Vec<Operation> {
    let precision =
        || query("precision", one_of(&["ns", "n", "us", "u", "ms", "s", "m", "h"]), "The unit of the timestamps");
    let body = || json!({ "required": true, "content": { "text/plain": { "schema": text() } } });
    let durable = || json!({ "description": "All readings are durable" });
    let mut operations = Vec::new();
    for (path, id) in
        [(paths::WRITE_INFLUX, "writeInflux"), ("/api/v2/write", "writeInflux2"), ("/write", "writeInflux1")]
    {
        let write = operation("post", path, id, "Write readings in the line protocol of InfluxDB");
        operations.push(write.parameters([precision()]).body_of(body()).response("204", durable()));
    }
    for (path, id) in
        [(paths::WRITE_CLUSTERCOCKPIT, "writeClusterCockpit"), ("/api/write/", "writeClusterCockpitCollector")]
    {
        let cluster = query("cluster", text(), "The cluster of lines without a tag `cluster`");
        let write = operation("post", path, id, "Write metric messages of ClusterCockpit");
        operations.push(write.parameters([precision(), cluster]).body_of(body()).response("200", durable()));
    }
    for (path, id) in [(paths::WRITE_PROMETHEUS, "writePrometheus"), ("/api/v1/write", "writePrometheusShort")] {
        let message = json!({ "schema": { "type": "string", "contentEncoding": "binary" } });
        let body = json!({
            "required": true,
            "description": "prometheus.WriteRequest, or io.prometheus.write.v2.Request if the media type has it as `proto`, compressed with snappy",
            "content": { "application/x-protobuf": message },
        });
        let write = operation("post", path, id, "Write samples with remote write of Prometheus, version 1.0 or 2.0");
        operations.push(write.body_of(body).response("204", durable()));
    }
    for (path, id) in [(paths::WRITE_OTLP, "writeOtlp"), ("/v1/metrics", "writeOtlpExporter")] {
        let message = || json!({ "schema": { "type": "string", "contentEncoding": "binary" } });
        let body = json!({
            "required": true,
            "description": "ExportMetricsServiceRequest of OTLP, compressed with gzip or not",
            "content": { "application/x-protobuf": message(), "application/json": { "schema": { "type": "object" } } },
        });
        let response = json!({
            "description": "All readings are durable, without the data points that partial_success counts; in the encoding of the request",
            "content": { "application/x-protobuf": message(), "application/json": { "schema": { "type": "object" } } },
        });
        let write = operation("post", path, id, "Write metrics of OpenTelemetry");
        operations.push(write.body_of(body).response("200", response));
    }
    operations
}

fn stored_data(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    vec![
        operation("get", paths::RETENTION, "retention", "List the retention rules")
            .responds::<api::RetentionList>(schemas, "Rules set at run time, the latest first, then those of the configuration"),
        operation("put", paths::RETENTION, "setRetention", "Set a retention rule, which takes precedence over all others")
            .parameters([dry_run()])
            .body::<api::SetRetention>(schemas)
            .responds::<api::RetentionList>(schemas, "The rules in force; with try=1 the readings that the rule would drop")
            .also("application/json", {
                let rules = schemas.subschema_for::<api::RetentionList>();
                json!({ "oneOf": [rules, schemas.subschema_for::<api::DeletedReadings>()] })
            }),
        operation("delete", paths::RETENTION, "unsetRetention", "Remove a retention rule that was set at run time")
            .parameters([required(query("pattern", text(), "The pattern of the rule"))])
            .responds::<api::RetentionList>(schemas, "The rules in force")
            .fails("404", "notFound"),
        operation("post", paths::DELETE, "deleteReadings", "Delete the readings of a range; durable before the response")
            .parameters([dry_run()])
            .body::<api::DeleteReadings>(schemas)
            .responds::<api::DeletedReadings>(schemas, "The deleted readings")
            .unavailable(),
        operation("get", paths::STATISTICS, "dataStats", "Statistics of stored readings by subtree")
            .parameters([pattern_optional(), query("level", integer(0, 32, 1), "The number of levels of the subtrees; 0: all sensors together")])
            .responds::<api::StoreStatistics>(schemas, "The statistics"),
        operation("get", paths::LOST, "lost", "Acknowledged readings that the journal has lost")
            .responds::<api::LossList>(schemas, "The losses that nobody has acknowledged"),
        operation("post", paths::LOST, "lostAcknowledge", "Acknowledge losses: responses no longer warn of them")
            .body::<api::AcknowledgeLosses>(schemas)
            .responds::<api::LossList>(schemas, "The losses that nobody has acknowledged"),
        operation("post", paths::BACKUP, "backup", "A backup of all readings that are acknowledged")
            .body_of(json!({ "content": { "text/plain": { "schema": { "type": "string", "description": "Files of an earlier backup, which are not \
                sent again: a line `name bytes sum` for each, as in its manifest" } } } }))
            .response("200", json!({ "description": "A tar file: backup.json, which lists all files with their CRC-32C, then the files. A response that \
                breaks off is incomplete" }))
            .also("application/x-tar", text())
            .unavailable(),
    ]
}

fn maintenance(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (kind, what) in [
        (api::MaintenanceKind::Compact, "merging the small blocks of each day"),
        (api::MaintenanceKind::Verify, "comparing every file with its checksums"),
        (api::MaintenanceKind::Repair, "repairing damaged files"),
    ] {
        let (path, id) = (kind.path(), kind.name());
        let progress = operation("get", path, &format!("{id}State"), &format!("The progress or the result of {what}"));
        operations.push(
            progress
                .responds::<api::MaintenanceStatus>(schemas, "The latest task since the server started")
                .fails("404", "notFound"),
        );
        let begin = operation("post", path, id, &format!("Begin {what}"))
            .description("The task continues without the client. One maintenance task runs at a time.");
        let begin = match kind {
            api::MaintenanceKind::Repair => begin.parameters([dry_run()]),
            _ => begin.fails("400", "badRequest"),
        };
        operations
            .push(begin.responds::<api::MaintenanceStatus>(schemas, "The task has begun").fails("409", "conflict"));
        operations.push(
            operation("delete", path, &format!("{id}End"), &format!("Cancel {what}"))
                .responds::<api::MaintenanceStatus>(schemas, "The task will end")
                .fails("404", "notFound"),
        );
    }
    operations
}

fn server(schemas: &mut SchemaGenerator) -> Vec<Operation> {
    vec![
        operation("get", paths::LOG, "log", "The log level").responds::<api::LogState>(schemas, "The level in force"),
        operation("put", paths::LOG, "setLog", "Change the log level for a time, or until the next reload or restart")
            .parameters([
                required(query("level", one_of(&["error", "warn", "info", "debug"]), "The level")),
                query("for", text(), "How long, such as 10min; then the configured level applies again"),
            ])
            .responds::<api::LogState>(schemas, "The level in force"),
        operation("post", paths::RELOAD, "reload", "Reload the configuration and the certificates, as SIGHUP does")
            .responds::<api::ReloadResult>(schemas, "The changes")
            .fails("400", "badRequest"),
        operation("get", paths::HEALTHZ, "healthz", "Whether the server can make readings durable")
            .responds::<api::ServerStatus>(schemas, "It can")
            .unavailable(),
        operation("get", "/ping", "ping", "Whether the server runs, for clients of InfluxDB")
            .response("204", json!({ "description": "It runs" })),
        operation(
            "get",
            "/health",
            "health",
            "Whether the server can make readings durable, for clients of InfluxDB 2",
        )
        .responds::<api::HealthResponse>(schemas, "It can")
        .response(
            "503",
            json!({ "description": "It cannot", "content": { "application/json": {
                "schema": schemas.subschema_for::<api::HealthResponse>(),
            } } }),
        ),
        operation("get", paths::METRICS, "metrics", "Metrics of the server in the text format of Prometheus")
            .response("200", json!({ "description": "The metrics" }))
            .also("text/plain", text()),
        operation("get", paths::OPENAPI, "openapi", "This document")
            .response("200", json!({ "description": "OpenAPI 3.1" }))
            .also("application/json", json!({ "type": "object" })),
    ]
}
