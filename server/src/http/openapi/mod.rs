//! Writes `openapi.json` from the routes, the types of `wholegrain-api` and the texts in `operations.rs`.
//! After a change run the tests with `UPDATE_EXPECT=1`.

mod operations;

use std::collections::BTreeSet;

use expect_test::expect_file;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::routes::{RoutePermissions, routes};
use crate::access::{Permission, Role};
use operations::operations;

/// The methods that the document describes.
const METHODS: [&str; 4] = ["get", "put", "post", "delete"];

/// A method of a path.
struct Operation {
    path: &'static str,
    method: &'static str,
    object: Map<String, Value>,
    parameters: Vec<Value>,
    responses: Map<String, Value>,
}

/// A parameter, an object of the document.
type Parameter = Value;

fn operation(method: &'static str, path: &'static str, id: &str, summary: &str) -> Operation {
    let object = Map::from_iter([("operationId".to_owned(), json!(id)), ("summary".to_owned(), json!(summary))]);
    Operation { path, method, object, parameters: Vec::new(), responses: Map::new() }
}

impl Operation {
    fn description(mut self, text: &str) -> Self {
        self.object.insert("description".to_owned(), json!(text));
        self
    }

    /// Parameters of the query or the path. A request with a wrong one gets the status 400.
    fn parameters<const N: usize>(mut self, parameters: [Parameter; N]) -> Self {
        self.parameters.extend(parameters);
        self.fails("400", "badRequest")
    }

    fn body<T: JsonSchema>(self, schemas: &mut SchemaGenerator) -> Self {
        let schema = schemas.subschema_for::<T>();
        self.body_of(json!({ "required": true, "content": { "application/json": { "schema": schema } } }))
    }

    fn body_of(mut self, body: Value) -> Self {
        self.object.insert("requestBody".to_owned(), body);
        self.fails("400", "badRequest")
    }

    /// A JSON response with the status 200.
    fn responds<T: JsonSchema>(self, schemas: &mut SchemaGenerator, description: &str) -> Self {
        let schema = schemas.subschema_for::<T>();
        self.response(
            "200",
            json!({ "description": description, "content": { "application/json": { "schema": schema } } }),
        )
    }

    fn response(mut self, status: &str, response: Value) -> Self {
        self.responses.insert(status.to_owned(), response);
        self
    }

    /// Adds headers to the response with the status 200.
    fn headers(mut self, headers: Value) -> Self {
        self.responses["200"]["headers"] = headers;
        self
    }

    /// Adds another media type to the response with the status 200.
    fn also(mut self, media_type: &str, schema: Value) -> Self {
        self.responses["200"]["content"][media_type] = json!({ "schema": schema });
        self
    }

    /// An error response among the document's components.
    fn fails(mut self, status: &str, component: &str) -> Self {
        self.responses
            .entry(status)
            .or_insert_with(|| json!({ "$ref": format!("#/components/responses/{component}") }));
        self
    }

    fn unavailable(self) -> Self {
        self.fails("503", "unavailable")
    }

    /// The operation as the document has it: with the responses of the access checks, unless the route is open.
    fn finish(mut self, permission: Permission) -> Value {
        if permission == Permission::Open {
            self.object.insert("security".to_owned(), json!([]));
        } else {
            self = self.fails("401", "unauthorized").fails("403", "forbidden");
        }
        if !self.parameters.is_empty() {
            self.object.insert("parameters".to_owned(), Value::from(self.parameters));
        }
        self.object.insert("responses".to_owned(), Value::from(self.responses));
        Value::from(self.object)
    }
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn one_of(values: &[&str]) -> Value {
    json!({ "type": "string", "enum": values })
}

fn integer(min: u64, max: u64, default: u64) -> Value {
    json!({ "type": "integer", "minimum": min, "maximum": max, "default": default })
}

fn with_default(mut schema: Value, default: impl Into<Value>) -> Value {
    schema["default"] = default.into();
    schema
}

/// An optional parameter of the query.
fn query(name: &str, schema: Value, description: &str) -> Parameter {
    json!({ "name": name, "in": "query", "description": description, "schema": schema })
}

fn required(mut parameter: Parameter) -> Parameter {
    parameter["required"] = json!(true);
    parameter
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let error = schemas.subschema_for::<wholegrain_api::ErrorResponse>();
    let permissions = |path: &str, method: &str| {
        let route = routes().into_iter().find(|route| route.0 == path);
        let (_, RoutePermissions { read, change }, _) = route.unwrap_or_else(|| panic!("{path} is not routed"));
        if method == "get" { read } else { change }
    };
    let mut paths = Map::new();
    for operation in operations(&mut schemas) {
        let (path, method) = (operation.path, operation.method);
        let operations = paths.entry(path).or_insert_with(|| json!({}));
        operations[method] = operation.finish(permissions(path, method));
    }
    let failure = |description: &str| json!({ "description": description, "content": { "application/json": { "schema": error } } });
    let patterns = |name: &str, is_required: bool, description: &str| {
        let schema = json!({ "type": "array", "items": { "type": "string" }, "maxItems": 256 });
        json!({ "name": name, "in": "query", "required": is_required, "description": description, "schema": schema, "style": "form", "explode": true })
    };
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Wholegrain server",
            "version": "1",
            "description": "Sensors, readings, jobs, and the administration of the server. Responses with lists or ranges are streamed. \
                Times are RFC 3339 in UTC with up to nine decimals; values are in the sensor's unit; null is a gap. JSON, NDJSON, CSV, Arrow and \
                metrics are compressed with gzip or zstd if Accept-Encoding names one; short responses, watch and backups are not.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "headers": {
                "sensors": { "description": "The number of sensors that match", "schema": { "type": "integer", "minimum": 0 } },
                "next": { "description": "The same as `next` in the body", "schema": text() },
                "warning": {
                    "description": "Readings that are missing from the response, as far as known before the first row; at most eight headers",
                    "schema": text(),
                },
                "note": {
                    "description": "Readings that are left out on purpose, as far as known before the first row; at most eight headers",
                    "schema": text(),
                },
            },
            "parameters": {
                "pattern": patterns("pattern", true, "The sensors, up to 256 patterns. `*` matches any text within a level, `**` any number of \
                    levels. A pattern without a leading `/` matches at any depth"),
                "patternOptional": patterns("pattern", false, "The sensors, up to 256 patterns; all sensors without one"),
                "job": { "name": "id", "in": "path", "required": true, "schema": text(),
                    "description": "The job's id, its level in the paths of its sensors, or its second id" },
                "dryRun": query("try", one_of(&["0", "1"]), "1: change nothing; respond as if the change had been made"),
            },
            "responses": {
                "badRequest": failure("The request is wrong; the message says what to write"),
                "unauthorized": failure("No token, or an invalid one. After many invalid ones from one address the status is 429, with Retry-After"),
                "forbidden": failure("The token's role does not permit this; the message names a role that does"),
                "noJob": failure("The job does not exist, or the token may not see it"),
                "notFound": failure("It does not exist"),
                "conflict": failure("Another task is running, or the job has ended"),
                "tooLarge": failure("The body is too large"),
                "unavailable": failure("Temporarily impossible; the message gives the reason"),
            },
            "schemas": schemas.take_definitions(true),
        },
    })
}

#[test]
fn the_document_is_generated() {
    let text = serde_json::to_string_pretty(&document()).unwrap();
    expect_file!["../openapi.json"].assert_eq(&format!("{text}\n"));
}

#[test]
fn the_document_has_every_route_and_method_and_no_others() {
    let mut schemas = SchemaSettings::draft2020_12().into_generator();
    let described: BTreeSet<(&str, &str)> =
        operations(&mut schemas).iter().map(|operation| (operation.path, operation.method)).collect();
    let mut routed = BTreeSet::new();
    for (path, _, methods) in routes() {
        // `MethodRouter` shows its methods in no other way.
        let methods = format!("{methods:?}");
        routed.extend(
            METHODS
                .into_iter()
                .filter(|method| !methods.contains(&format!(" {method}: None")))
                .map(|method| (path, method)),
        );
    }
    assert_eq!(described, routed);
}

#[test]
fn every_operation_has_its_own_id() {
    let mut schemas = SchemaSettings::draft2020_12().into_generator();
    let ids: Vec<Value> =
        operations(&mut schemas).iter().map(|operation| operation.object["operationId"].clone()).collect();
    let mut unique: Vec<&str> = ids.iter().filter_map(Value::as_str).collect();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids.len());
}

#[test]
fn support_reads_every_route_and_changes_nothing() {
    let mut schemas = SchemaSettings::draft2020_12().into_generator();
    for operation in operations(&mut schemas) {
        let (path, method) = (operation.path, operation.method);
        let (_, permissions, _) = routes().into_iter().find(|route| route.0 == path).unwrap();
        if method == "get" {
            assert!(Role::Support.may(permissions.read), "GET {path}");
        } else if path != wholegrain_api::paths::PROMETHEUS_READ {
            assert!(!Role::Support.may(permissions.change), "{method} {path}");
        }
    }
}

#[test]
fn the_document_lists_exactly_the_parameters() {
    use super::{
        admin, data, import, job_energy, job_statistics, jobs, maintenance, params, properties, rules, virtuals,
    };
    use wholegrain_api::paths;
    let mut schemas = SchemaSettings::draft2020_12().into_generator();
    let components = &document()["components"]["parameters"];
    let described = operations(&mut schemas);
    for (path, method, known) in [
        (paths::SENSORS, "get", params::SENSORS),
        (paths::NAMES, "get", params::NAMES),
        (paths::NEWEST, "get", params::NEWEST),
        (paths::QUERY, "get", params::QUERY),
        (paths::WATCH, "get", params::WATCH),
        (paths::VIRTUAL, "get", virtuals::LIST),
        (paths::VIRTUAL, "delete", virtuals::REMOVE),
        (paths::VIRTUAL_HISTORY, "get", virtuals::HISTORY),
        (paths::JOBS, "get", jobs::JOBS),
        (paths::JOB, "get", jobs::JOB),
        (paths::JOB_STATISTICS, "get", job_statistics::STATISTICS),
        (paths::JOB_ENERGY, "get", job_energy::ENERGY),
        (paths::JOB_RULES, "post", rules::RULES),
        (paths::IMPORT, "get", import::SHOW),
        (paths::IMPORT, "post", import::IMPORT),
        (paths::RETENTION, "put", data::SET_RETENTION),
        (paths::RETENTION, "delete", data::UNSET_RETENTION),
        (paths::DELETE, "post", data::DELETE),
        (paths::STATISTICS, "get", data::STATS),
        (paths::REPAIR, "post", maintenance::REPAIR),
        (paths::LOG, "put", admin::LOG),
        (paths::PROPERTIES, "get", properties::PROPERTIES),
        (paths::PROPERTIES, "put", properties::SET),
        (paths::PROPERTIES, "delete", properties::UNSET),
        (paths::PROPERTY_HISTORY, "get", properties::HISTORY),
    ] {
        let operation = described.iter().find(|one| (one.path, one.method) == (path, method)).unwrap();
        let resolved = operation.parameters.iter().map(|parameter| match parameter["$ref"].as_str() {
            Some(reference) => &components[reference.rsplit('/').next().unwrap()],
            None => parameter,
        });
        let names: Vec<&str> =
            resolved.filter(|one| one["in"] == "query").map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, known, "{method} {path}");
    }
}
