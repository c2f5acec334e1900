//! `/api/v1/properties`: unit, scale, kind, description and time-to-live of sensors, where each value comes from, and settings by people.

use std::io::{self, Write};
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use wholegrain_api::{
    PropertyChange, PropertyHistory, PropertyName, PropertySettings, PropertyValue, SensorProperties, SetProperties,
    SetPropertiesOf, SetPropertiesResult, UnsetPropertiesResult, UtcTime,
};
use wholegrain_model::{Interval, Pattern};
use wholegrain_store::{
    Property, PropertyOrigins, PropertySetting, RetentionRule, RuleInForce, SensorSetting, Store, StoreError,
};

use super::clock::now;
use super::params::QueryParams;
use super::permission::{audit_change, require};
use super::read::{limits, page, run_until_abandoned};
use super::serve::PeerAddress;
use super::sink::BodySink;
use super::visibility::UserVisibility;
use super::visibility::only_user;
use super::{Api, ApiError};
use crate::access::Permission;
use crate::access::tokens::Bearer;

pub(super) const PROPERTIES: &[&str] = &["pattern", "limit", "after"];
pub(super) const SET: &[&str] = &["try", "only_new"];
pub(super) const UNSET: &[&str] = &["pattern", "property"];
pub(super) const HISTORY: &[&str] = &["pattern", "limit"];
/// Default and maximum of sensors in a page: each has some 400 bytes.
const PAGE: (usize, usize) = (10_000, 10_000);
/// Default and maximum of changes in a history.
const LIMIT: (usize, usize) = (10_000, 1_000_000);
/// Sensors that are looked up at a time.
const AT_ONCE: usize = 1024;
/// The most settings of one request for which the response counts the matching sensors.
const COUNTED_MAX: usize = 16;
/// The most settings of one request that the audit log names.
const NAMED_MAX: usize = 8;
/// The retention of data that is never dropped.
const FOREVER: &str = "forever";
/// The registry's key for retention rules.
const RETENTION: &str = "retention";

/// Lists sensors with their properties and where each comes from, a page at a time.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, PROPERTIES)?;
    let (patterns, (limit, mut after)) = (params.some_patterns()?, limits(&params, PAGE)?);
    let (store, user) = (api.store.clone(), only_user(&bearer).map(str::to_owned));
    let place = super::read::place(&api, &bearer).await?;
    let choose = move |is_gone: &dyn Fn() -> bool| {
        // Virtual sensors have the properties of their definitions.
        let mut sensors = Vec::new();
        loop {
            let mut part = store.sensors_after_until(&patterns, after.as_deref(), AT_ONCE, is_gone);
            after = part.last().filter(|_| part.len() == AT_ONCE).map(|last| last.path.to_string());
            user.iter().for_each(|user| store.retain_seen(user, &mut part));
            sensors.extend(part);
            if sensors.len() > limit || after.is_none() || is_gone() {
                break;
            }
        }
        let more = sensors.len() > limit;
        sensors.truncate(limit);
        let next = sensors.last().filter(|_| more).map(|last| last.path.clone());
        (sensors, next, place)
    };
    let (sensors, next, place) = run_until_abandoned(&api.metrics, choose).await?;
    Ok(page("sensors", sensors.len(), next, move |sink| {
        let _place = place;
        let rules = api.store.retention_rules();
        let mut first = true;
        for some in sensors.chunks(AT_ONCE) {
            for explained in api.store.explain(some) {
                row(&explained, &rules, first, sink)?;
                first = false;
            }
        }
        Ok(())
    }))
}

fn row(explained: &PropertyOrigins, rules: &[RuleInForce], first: bool, sink: &mut BodySink) -> io::Result<()> {
    let value = |property: Property| {
        let value = explained.value(property);
        match &explained.set[property as usize] {
            None => PropertyValue { value, ..PropertyValue::default() },
            Some(set) => PropertyValue {
                value,
                sent: Some(explained.sent(property)),
                pattern: Some(set.pattern.clone()),
                who: Some(set.who.clone()),
                time: Some(UtcTime(set.at)),
            },
        }
    };
    let row = SensorProperties {
        path: explained.info.path.to_string(),
        agent: explained.info.agent.to_string(),
        unit: value(Property::Unit),
        scale: value(Property::Scale),
        kind: value(Property::Kind),
        description: value(Property::Description),
        interval: value(Property::Interval),
        ttl: match rules.iter().find(|rule| rule.rule.pattern.matches(&explained.info.path)) {
            None => PropertyValue { value: FOREVER.into(), ..PropertyValue::default() },
            Some(RuleInForce { rule, set }) => PropertyValue {
                value: kept(rule).into(),
                sent: None,
                pattern: Some(rule.pattern.to_string()),
                who: set.as_ref().map(|(who, _)| who.clone()),
                time: set.as_ref().map(|(_, at)| UtcTime(*at)),
            },
        },
    };
    sink.write_all(if first { b"" } else { b",\n" })?;
    serde_json::to_writer(&mut *sink, &row)?;
    sink.relay()
}

fn kept(rule: &RetentionRule) -> String {
    rule.raw.map_or_else(|| FOREVER.to_owned(), |age| age.to_string())
}

/// Lists the settings in their order of precedence; users do not see patterns that name other users' jobs.
pub(super) async fn settings(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    QueryParams::of(&uri, &[])?;
    let (place, metrics) = (super::read::place(&api, &bearer).await?, api.metrics.clone());
    run_until_abandoned(&metrics, move |is_gone| {
        let _place = place;
        let mut rows = settings_of(&api);
        retain_seen(&api, &bearer, &mut rows, is_gone);
        Json(PropertySettings { settings: rows }).into_response()
    })
    .await
}

/// Removes rows with a `pattern` that the user may not see.
fn retain_seen(api: &Api, bearer: &Bearer, rows: &mut Vec<PropertyChange>, is_gone: &dyn Fn() -> bool) {
    if let Some(user) = only_user(bearer) {
        let mut view = UserVisibility::new(api, user, is_gone);
        rows.retain(|row| view.sees_pattern(&row.pattern));
    }
}

fn settings_of(api: &Api) -> Vec<PropertyChange> {
    let mut rows: Vec<PropertyChange> = api.store.property_settings().iter().map(|setting| change(setting)).collect();
    // The rule that was set last comes first.
    for RuleInForce { rule, set } in api.store.retention_rules().iter().rev() {
        if let Some((who, at)) = set {
            rows.push(PropertyChange {
                pattern: rule.pattern.to_string(),
                property: PropertyName::Ttl,
                value: Some(kept(rule).into()),
                who: who.clone(),
                time: UtcTime(*at),
            });
        }
    }
    rows
}

/// Lists all changes of settings; users do not see patterns that name other users' jobs.
pub(super) async fn history(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let params = QueryParams::of(&uri, HISTORY)?;
    let (mut patterns, limit) = (params.patterns()?, limit(&params)?);
    if patterns.len() > 1 {
        return Err(ApiError::bad_request("the history is of one pattern, or of all; give `pattern` once"));
    }
    let pattern = patterns.pop();
    let (place, metrics) = (super::read::place(&api, &bearer).await?, api.metrics.clone());
    let read = move |is_gone: &dyn Fn() -> bool| -> Result<Vec<PropertyChange>, StoreError> {
        let _place = place;
        let set = api.store.property_history(pattern.as_ref(), limit)?;
        let mut rows: Vec<(u64, PropertyChange)> =
            set.iter().map(|setting| (setting.number, change(setting))).collect();
        let key = pattern.as_ref().map(Pattern::as_str);
        for entry in api.store.registry().history(RETENTION, key, limit)? {
            let row = PropertyChange {
                pattern: entry.key,
                property: PropertyName::Ttl,
                value: entry.value.map(|mut value| value["keep"].take()),
                who: entry.who,
                time: UtcTime(entry.at),
            };
            rows.push((entry.number, row));
        }
        rows.sort_by_key(|(number, _)| *number);
        let mut rows = rows.drain(rows.len().saturating_sub(limit)..).map(|(_, row)| row).collect();
        retain_seen(&api, &bearer, &mut rows, is_gone);
        Ok(rows)
    };
    let rows = run_until_abandoned(&metrics, read).await?;
    Ok(Json(PropertyHistory { history: rows.map_err(refused)? }).into_response())
}

fn change(setting: &PropertySetting) -> PropertyChange {
    PropertyChange {
        pattern: setting.pattern.clone(),
        property: name(setting.property),
        value: setting.value.clone(),
        who: setting.who.clone(),
        time: UtcTime(setting.at),
    }
}

fn name(property: Property) -> PropertyName {
    match property {
        Property::Unit => PropertyName::Unit,
        Property::Scale => PropertyName::Scale,
        Property::Kind => PropertyName::Kind,
        Property::Description => PropertyName::Description,
        Property::Interval => PropertyName::Interval,
    }
}

/// Sets properties by pattern.
pub(super) async fn set(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    uri: Uri,
    body: Bytes,
) -> Result<Response, ApiError> {
    require(&api, &bearer, peer.as_ref().map(|Extension(PeerAddress(address))| *address), Permission::Manage)?;
    let params = QueryParams::of(&uri, SET)?;
    let (dry, only_new) = (yes(&params, "try")?, yes(&params, "only_new")?);
    let (settings, ages) = wanted(&api.store, &body)?;
    let (store, who) = (api.store.clone(), bearer.name.clone());
    let what = summary(&settings, &ages);
    let done = tokio::task::spawn_blocking(move || -> Result<SetPropertiesResult, StoreError> {
        let report = if dry {
            store.try_properties(&settings, only_new)?
        } else {
            store.set_properties(&settings, only_new, &who, now().0)?
        };
        for (pattern, age) in ages.iter().filter(|_| !dry) {
            store.set_retention(pattern, *age, &who, now().0)?;
        }
        let count = |setting: &SensorSetting| store.count_sensors(&setting.pattern);
        let counts: Option<Vec<u64>> = (settings.len() <= COUNTED_MAX).then(|| settings.iter().map(count).collect());
        Ok(SetPropertiesResult { set: report.set + ages.len() as u64, same: report.same, sensors: counts })
    });
    let done = done.await.map_err(|error| ApiError::internal(format!("setting properties failed: {error}")))?;
    if !dry {
        audit_change(&api, &bearer, peer.as_ref(), &format!("set {what}"), done.is_ok());
    }
    Ok(Json(done.map_err(refused)?).into_response())
}

type StalenessRules = Vec<(Pattern, Option<Interval>)>;

/// Checks the settings of a request's body, retentions included.
fn wanted(store: &Store, body: &[u8]) -> Result<(Vec<SensorSetting>, StalenessRules), ApiError> {
    const WANTED: &str = r#"expected settings, such as {"settings": [{"pattern": "/lrz/**/power", "unit": "W"}]}"#;
    let body: SetProperties<Value> =
        serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("{error}; {WANTED}")))?;
    let (mut settings, mut ages) = (Vec::with_capacity(body.settings.len()), StalenessRules::new());
    for (number, value) in (1..).zip(body.settings) {
        let wrong = |reason: String| ApiError::bad_request(format!("setting {number}: {reason}"));
        let known: Vec<&str> = ["pattern"].into_iter().chain(PropertyName::ALL.map(PropertyName::name)).collect();
        if let Some(unknown) = value.as_object().and_then(|of| of.keys().find(|key| !known.contains(&key.as_str()))) {
            return Err(wrong(wholegrain_model::config::unknown("property", unknown, &known)));
        }
        let SetPropertiesOf { pattern, unit, scale, kind, description, interval, ttl } =
            serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        let pattern = Pattern::new(pattern).map_err(|error| wrong(format!("pattern: {error}")))?;
        let interval = interval.as_deref().map(Interval::parse).transpose();
        let interval = interval.map_err(|error| wrong(format!("interval: {error}")))?;
        let setting = SensorSetting { pattern, unit, scale, kind, description, interval };
        setting.check().map_err(|reason| wrong(format!("{}: {reason}", setting.pattern)))?;
        if let Some(ttl) = &ttl {
            let raw = match ttl.as_str() {
                FOREVER => None,
                text => Some(Interval::parse(text).map_err(|error| wrong(format!("ttl: {error}, or {FOREVER}")))?),
            };
            let rule = RetentionRule { pattern: setting.pattern.clone(), raw, tiers: Vec::new() };
            store.check_rule(&rule).map_err(|error| wrong(format!("ttl: {error}")))?;
            ages.push((rule.pattern, raw));
        }
        settings.push(setting);
    }
    Ok((settings, ages))
}

/// The audit log's text.
fn summary(settings: &[SensorSetting], ages: &StalenessRules) -> String {
    let one = |setting: &SensorSetting| serde_json::to_string(setting).unwrap_or_default();
    let mut parts: Vec<String> = settings.iter().take(NAMED_MAX).map(one).collect();
    let ttl = |(pattern, age): &(Pattern, Option<Interval>)| {
        let age = age.map_or_else(|| FOREVER.to_owned(), |age| age.to_string());
        format!("{pattern} ttl {age}")
    };
    parts.extend(ages.iter().take(NAMED_MAX).map(ttl));
    let more = settings.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        parts.push(format!("and {more} more"));
    }
    parts.join(", ")
}

/// Removes the settings of one pattern.
pub(super) async fn unset(
    State(api): State<Arc<Api>>,
    Extension(bearer): Extension<Bearer>,
    peer: Option<Extension<PeerAddress>>,
    uri: Uri,
) -> Result<Response, ApiError> {
    require(&api, &bearer, peer.as_ref().map(|Extension(PeerAddress(address))| *address), Permission::Manage)?;
    let params = QueryParams::of(&uri, UNSET)?;
    let mut patterns = params.some_patterns()?;
    let (Some(pattern), true) = (patterns.pop(), patterns.is_empty()) else {
        return Err(ApiError::bad_request("one pattern at a time is unset; give `pattern` once"));
    };
    let known = PropertyName::ALL.map(PropertyName::name);
    let property = params.read("property", |text| {
        if known.contains(&text) {
            Ok(text.to_owned())
        } else {
            Err(wholegrain_model::config::unknown("property", text, &known))
        }
    })?;
    let (store, who, what) = (api.store.clone(), bearer.name.clone(), format!("unset {pattern}"));
    let done = tokio::task::spawn_blocking(move || -> Result<u64, StoreError> {
        let all = property.is_none();
        let of: Vec<Property> =
            Property::ALL.into_iter().filter(|(name, _)| property.as_deref() == Some(name)).map(|of| of.1).collect();
        let mut count = 0;
        if all || !of.is_empty() {
            count += store.unset_properties(&pattern, &of, &who, now().0)?;
        }
        if all || property.as_deref() == Some("ttl") {
            count += u64::from(store.unset_retention(pattern.as_str(), &who, now().0)?);
        }
        Ok(count)
    });
    let done = done.await.map_err(|error| ApiError::internal(format!("unsetting properties failed: {error}")))?;
    audit_change(&api, &bearer, peer.as_ref(), &what, done.is_ok());
    Ok(Json(UnsetPropertiesResult { unset: done.map_err(refused)? }).into_response())
}

/// Errors of the store that the request causes are client errors, others server errors.
fn refused(error: StoreError) -> ApiError {
    match error {
        StoreError::Sensor(reason) => ApiError::bad_request(reason),
        other => {
            tracing::error!("properties: {other}");
            ApiError::internal(other.to_string())
        }
    }
}

fn yes(params: &QueryParams, name: &str) -> Result<bool, ApiError> {
    let given = params.read(name, |text| match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("expected 1 or 0"),
    })?;
    Ok(given == Some(true))
}

fn limit(params: &QueryParams) -> Result<usize, ApiError> {
    let given = params.read("limit", |text| match text.parse() {
        Ok(limit) if (1..=LIMIT.1).contains(&limit) => Ok(limit),
        _ => Err(format!("expected 1 to {}", LIMIT.1)),
    })?;
    Ok(given.unwrap_or(LIMIT.0))
}
