//! The routes of the API.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use wholegrain_model::{Interval, LogLevel, Pattern, Timestamp};

use super::caller::ApiCaller;
use super::context::ApiContext;
use super::failure::HttpFailure;
use super::http::{self, ChunkedResponse, HttpRequest};
use super::limits::REQUESTS_PER_MINUTE;
use super::scope::{self, AccessScope};
use super::service::ApiService;
use super::{jobs, view};
use crate::engine::clock;
use crate::jobs::{CallerIdentity, Role};
use crate::manager::{ManagerCommand, PluginAction};
use crate::readings::{average, matches_any, scaled};
use crate::sync::lock;

/// The most readings of one answer to `/v1/history`.
const HISTORY_READINGS_MAX: usize = 2_000_000;
/// The default window of `/v1/average`: 10 s.
const WINDOW: Interval = Interval::from_s(10);

/// All routes, for the response to an unknown one.
const KNOWN: &str = "GET /v1/status, /v1/log, /v1/sources, /v1/plugins, /v1/groups, /v1/sensors?pattern=, /v1/newest?pattern=, \
                     /v1/average?pattern=&window=, /v1/history?pattern=&from=&to=, /v1/jobs, /v1/jobs/ID, /v1/rules; \
                     POST /v1/sources/NAME/stop, /v1/sources/NAME/start, \
                     /v1/plugins/NAME/load, /v1/plugins/NAME/unload, /v1/plugins/NAME/restart, /v1/groups/NAME/interval?value=, \
                     /v1/log?level=&for=, /v1/reload, /v1/rules[?try=1]; DELETE /v1/rules/ID";

pub(super) fn answer(
    stream: &mut (impl Read + Write),
    service: &ApiService,
    caller: &ApiCaller,
    request: &HttpRequest,
) -> io::Result<()> {
    let result = admit(service, caller, request).and_then(|who| {
        if request.method == "GET" && request.path == "/v1/history" {
            return Ok(Err((history_request(request)?, scope_of(&who, &service.context))));
        }
        body(service, &who, request).map(Ok)
    });
    let result = match result {
        Ok(Err((wanted, scope))) => return history(stream, &service.context, request, wanted, &scope),
        Ok(Ok(body)) => Ok(body),
        Err(failure) => Err(failure),
    };
    match result {
        Ok(body) => http::answer(stream, 200, &body, request.keep),
        Err(HttpFailure(status, why)) => http::answer(stream, status, &view::error(&why), request.keep),
    }
}

fn scope_of<'a>(who: &CallerIdentity, context: &'a ApiContext) -> AccessScope<'a> {
    AccessScope::of(who, &context.jobs.get(), &context.identity.prefix)
}

/// Identifies the caller and checks permission and rate.
fn admit(service: &ApiService, caller: &ApiCaller, request: &HttpRequest) -> Result<CallerIdentity, HttpFailure> {
    let who = match caller {
        ApiCaller::Known(who) => who.clone(),
        ApiCaller::ByToken { peer, tokens, admission } => {
            let now = Timestamp(clock::real());
            let who = tokens.who(request.token.as_deref(), peer, now).map_err(|why| {
                service.forbidden(peer, peer, &why);
                HttpFailure(401, why)
            })?;
            admission.borrow_mut().admit(&who, &service.https).map_err(|why| {
                service.refused(&who.name);
                HttpFailure(503, why)
            })?;
            who
        }
    };
    if who.role == Role::User && !lock(&service.requests).take(&who.key(), clock::real()) {
        let why =
            format!("more than {REQUESTS_PER_MINUTE} requests of one user within a minute; wait for the next one");
        service.forbidden(&who.key(), &who.name, &why);
        return Err(HttpFailure(429, why));
    }
    scope::check(&who, request).map_err(|why| {
        service.forbidden(&who.key(), &who.name, &why);
        HttpFailure(403, why)
    })?;
    Ok(who)
}

fn body(service: &ApiService, who: &CallerIdentity, request: &HttpRequest) -> Result<Vec<u8>, HttpFailure> {
    let context = &*service.context;
    let run = |command: ManagerCommand| {
        tracing::info!("{command:?}, requested by {}", who.name);
        Ok(view::bytes(&service.manager_handle.execute(command)?))
    };
    let path = request.path.trim_end_matches('/');
    match request.method.as_str() {
        "GET" | "HEAD" => match path {
            "/v1/status" => Ok(view::bytes(&view::status(context))),
            "/v1/log" => Ok(view::bytes(&context.status.log())),
            "/v1/sources" => Ok(view::bytes(&view::SourcesView { sources: view::sources(&context.status) })),
            "/v1/plugins" => Ok(view::bytes(&view::PluginsView { plugins: view::plugins(&context.status) })),
            "/v1/groups" => {
                let groups = context.registry.live().iter().map(|group| view::group(group, false)).collect();
                Ok(view::bytes(&view::GroupsView { groups }))
            }
            "/v1/sensors" => sensors(context, request, &scope_of(who, context)),
            "/v1/newest" => newest(context, request, &scope_of(who, context)),
            "/v1/average" => averages(context, request, &scope_of(who, context)),
            "/v1/jobs" => Ok(jobs::list(&context.jobs.get(), who)),
            "/v1/rules" => Ok(jobs::rules(&context.jobs.get(), who)),
            _ if path.starts_with("/v1/jobs/") => jobs::one(&context.jobs.get(), who, &path["/v1/jobs/".len()..]),
            _ => Err(HttpFailure(404, format!("there is no {path}; the routes are {KNOWN}"))),
        },
        "POST" => match path.strip_prefix("/v1/").unwrap_or_default() {
            "log" => run(log_command(request)?),
            "reload" => run(ManagerCommand::Reload),
            "rules" => jobs::add(service, who, request),
            rest => run(named_command(rest, request)
                .ok_or_else(|| HttpFailure(404, format!("there is no {path}; the routes are {KNOWN}")))??),
        },
        "DELETE" if path.starts_with("/v1/rules/") => jobs::remove(service, who, &path["/v1/rules/".len()..]),
        method => Err(HttpFailure(405, format!("{method} is not supported; the routes are {KNOWN}"))),
    }
}

fn log_command(request: &HttpRequest) -> Result<ManagerCommand, HttpFailure> {
    let text = request.value("level").unwrap_or_default();
    let level = text.parse::<LogLevel>().map_err(|_| {
        HttpFailure(400, format!("level: {text:?} is not a level; add ?level= and error, warn, info, debug or trace"))
    })?;
    let within = request.value("for").map(Interval::parse).transpose();
    Ok(ManagerCommand::Log(level, within.map_err(|error| HttpFailure(400, format!("for: {error}")))?))
}

/// `sources/NAME/stop`, `groups/NAME/interval`; NAME may have slashes, plain or percent-encoded.
fn named_command(rest: &str, request: &HttpRequest) -> Option<Result<ManagerCommand, HttpFailure>> {
    let (kind, rest) = rest.split_once('/')?;
    let (name, verb) = rest.rsplit_once('/')?;
    let name = http::decode(name, false)?;
    match (kind, verb) {
        ("sources", "stop") => Some(Ok(ManagerCommand::Stop(name))),
        ("sources", "start") => Some(Ok(ManagerCommand::Start(name))),
        ("plugins", "load") => Some(Ok(ManagerCommand::Plugin(PluginAction::Load, name))),
        ("plugins", "unload") => Some(Ok(ManagerCommand::Plugin(PluginAction::Unload, name))),
        ("plugins", "restart") => Some(Ok(ManagerCommand::Plugin(PluginAction::Restart, name))),
        ("groups", "interval") => {
            let Some(value) = request.value("value") else {
                return Some(Err(HttpFailure(400, "which interval? add ?value=100ms".into())));
            };
            let parsed = Interval::parse(value).map_err(|error| HttpFailure(400, format!("value: {error}")));
            Some(parsed.map(|interval| ManagerCommand::Interval(name, interval)))
        }
        _ => None,
    }
}

fn patterns(request: &HttpRequest) -> Result<Vec<Pattern>, HttpFailure> {
    let parse = |text: &str| Pattern::new(text).map_err(|error| HttpFailure(400, error.to_string()));
    request.values("pattern").map(parse).collect()
}

fn sensors(context: &ApiContext, request: &HttpRequest, scope: &AccessScope) -> Result<Vec<u8>, HttpFailure> {
    let patterns = patterns(request)?;
    let selected = context.readings.select(|path| matches_any(&patterns, path) && scope.includes(path));
    let mut times: HashMap<u64, Option<String>> = HashMap::new();
    let list = selected.iter().map(|selected| {
        let (group, sensor) = (&selected.group, selected.sensor());
        let last_time = times
            .entry(group.id)
            .or_insert_with(|| context.readings.newest_row(group).map(|(time, _)| view::time(time)));
        view::SensorView {
            path: &selected.path,
            unit: &sensor.unit,
            kind: sensor.kind,
            value_type: sensor.value_type,
            scale: sensor.scale,
            interval_ns: group.ticking.interval.ns(),
            last_time: last_time.clone(),
            group: group.name(),
            description: &sensor.description,
        }
    });
    Ok(view::bytes(&view::SensorsView { sensors: list.collect() }))
}

fn newest(context: &ApiContext, request: &HttpRequest, scope: &AccessScope) -> Result<Vec<u8>, HttpFailure> {
    let patterns = patterns(request)?;
    let selected = context.readings.select(|path| matches_any(&patterns, path) && scope.includes(path));
    let mut rows = HashMap::new();
    let readings = selected.iter().map(|selected| {
        let row = rows.entry(selected.group.id).or_insert_with(|| context.readings.newest_row(&selected.group));
        let (sensor, index) = (selected.sensor(), selected.index);
        let value = row.as_ref().and_then(|(_, values)| values.get(index).copied().flatten());
        view::ReadingView {
            path: &selected.path,
            time: row.as_ref().map(|(time, _)| view::time(*time)),
            value: value.map(|value| scaled(value, sensor)),
            unit: &sensor.unit,
        }
    });
    Ok(view::bytes(&view::ReadingsView { readings: readings.collect() }))
}

fn averages(context: &ApiContext, request: &HttpRequest, scope: &AccessScope) -> Result<Vec<u8>, HttpFailure> {
    let window = match request.value("window") {
        Some(text) => Interval::parse(text).map_err(|error| HttpFailure(400, format!("window: {error}")))?,
        None => WINDOW,
    };
    let to = clock::real().saturating_add(1);
    let from = to.saturating_sub_unsigned(window.ns());
    let patterns = patterns(request)?;
    let mut averages = Vec::new();
    let done: Result<(), std::convert::Infallible> =
        context.readings.history(window_of(&patterns, scope, from), to, |path, sensor, readings| {
            let average = average(readings);
            averages.push(view::AverageView {
                path: path.to_owned(),
                mean: average.map(|average| average.mean),
                min: average.map(|average| average.min),
                max: average.map(|average| average.max),
                unit: sensor.unit.clone(),
                count: average.map_or(0, |average| average.count),
                gaps: average.map_or(readings.len(), |average| average.gaps),
                first_time: readings.first().map(|(time, _)| view::time(*time)),
                last_time: readings.last().map(|(time, _)| view::time(*time)),
            });
            Ok(())
        });
    let Ok(()) = done;
    Ok(view::bytes(&view::AveragesView { averages }))
}

/// The begin of the readings of each sensor; `None` for a sensor that is left out.
fn window_of<'a>(patterns: &'a [Pattern], scope: &'a AccessScope<'a>, from: i64) -> impl Fn(&str) -> Option<i64> + 'a {
    move |path| if matches_any(patterns, path) { scope.since(path).map(|since| since.max(from)) } else { None }
}

struct HistoryRequest {
    patterns: Vec<Pattern>,
    from: i64,
    to: i64,
}

fn history_request(request: &HttpRequest) -> Result<HistoryRequest, HttpFailure> {
    let now = Timestamp(clock::real());
    let time = |name: &str, default: Timestamp| match request.value(name) {
        Some(text) => Timestamp::parse(text, now).map_err(|error| HttpFailure(400, format!("{name}: {error}"))),
        None => Ok(default),
    };
    let (from, to) = (time("from", Timestamp(i64::MIN))?, time("to", now.saturating_add(1))?);
    if from > to {
        return Err(HttpFailure(400, format!("from ({from}) is after to ({to}); exchange them")));
    }
    Ok(HistoryRequest { patterns: patterns(request)?, from: from.0, to: to.0 })
}

/// Streams readings; one sensor is decoded at a time.
fn history(
    stream: &mut impl Write,
    context: &ApiContext,
    request: &HttpRequest,
    wanted: HistoryRequest,
    scope: &AccessScope,
) -> io::Result<()> {
    let mut out = ChunkedResponse::begin(stream, request.keep)?;
    out.write_all(b"{\"readings\":[")?;
    let mut count = 0;
    context.readings.history(
        window_of(&wanted.patterns, scope, wanted.from),
        wanted.to,
        |path, sensor, readings| -> io::Result<()> {
            for (time, value) in readings {
                if count == HISTORY_READINGS_MAX {
                    return Ok(());
                }
                out.write_all(if count == 0 { b"\n" } else { b",\n" })?;
                let reading =
                    view::ReadingView { path, time: Some(view::time(*time)), value: *value, unit: &sensor.unit };
                serde_json::to_writer(&mut out, &reading)?;
                count += 1;
            }
            Ok(())
        },
    )?;
    let more = count == HISTORY_READINGS_MAX;
    out.write_all(if more { b"\n],\"cut_off\":\"ask for a shorter time or fewer sensors\"}\n" } else { b"\n]}\n" })?;
    out.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands() {
        let check = |path: &str, query: &[(&str, &str)], expected: &str| {
            let query = query.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            let request = HttpRequest { method: "POST".into(), query, ..HttpRequest::default() };
            let shown = match named_command(path, &request) {
                None => "none".to_owned(),
                Some(Ok(command)) => format!("{command:?}"),
                Some(Err(HttpFailure(status, why))) => format!("{status} {why}"),
            };
            assert!(shown.starts_with(expected), "{shown}");
        };
        check("sources/procfs/stop", &[], "Stop(\"procfs\")");
        check("groups/net%2Fdev/interval", &[("value", "10ms")], "Interval(\"net/dev\", Interval(10000000))");
        check("groups/net/dev/interval", &[("value", "10ms")], "Interval(\"net/dev\", ");
        check("groups/a/interval", &[], "400 which interval?");
        check("groups/a/interval", &[("value", "10")], "400 value: \"10\" is not a length of time");
        check("sources/a", &[], "none");
        check("groups/%zz/interval", &[("value", "1s")], "none");
    }
}
