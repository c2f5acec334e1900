//! Request parameters, and messages that name the wrong one.

use axum::extract::Query as Pairs;
use axum::http::Uri;
use wholegrain_model::{Interval, Pattern, Timestamp, Unit, config};
use wholegrain_query::{Across, Agg, Op, PATTERNS_MAX, Query};

use super::ApiError;
use super::format::ResponseFormat;

pub(super) const SENSORS: &[&str] = &["pattern", "job", "at", "limit", "after"];
pub(super) const NAMES: &[&str] = &["begin", "near"];
pub(super) const NEWEST: &[&str] = &["pattern", "limit", "after"];
pub(super) const QUERY: &[&str] = &[
    "pattern", "from", "to", "every", "points", "agg", "op", "across", "levels", "job", "at", "unit", "limit", "format",
];
pub(super) const WATCH: &[&str] = &["pattern"];
pub(super) const FROM_DEFAULT_NS: i64 = 3_600_000_000_000;

pub(super) struct QueryParams(Vec<(String, String)>);

impl QueryParams {
    /// Reads a request's query, whose names must be among `known`.
    pub fn of(uri: &Uri, known: &[&str]) -> Result<Self, ApiError> {
        let pairs: Pairs<Vec<(String, String)>> = Pairs::try_from_uri(uri).map_err(|error| {
            ApiError::bad_request(format!(
                "the part after `?` cannot be read ({error}); write name=value&name=value, percent-encoded"
            ))
        })?;
        for (index, (name, _)) in pairs.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                return Err(ApiError::bad_request(config::unknown("parameter", name, known)));
            }
            if name != "pattern" && pairs[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(ApiError::bad_request(format!("parameter `{name}` is given twice; give it once")));
            }
        }
        Ok(Self(pairs.0))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A parameter's value, parsed by `read`, whose error says what is wrong.
    pub fn read<T, E: std::fmt::Display>(
        &self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        read(text).map(Some).map_err(|error| ApiError::bad_request(format!("parameter `{name}`: {error}")))
    }

    /// All values of a parameter that may be repeated.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The patterns; empty if there are none.
    pub fn patterns(&self) -> Result<Vec<Pattern>, ApiError> {
        let patterns: Vec<Pattern> = self
            .0
            .iter()
            .filter(|(name, _)| name == "pattern")
            .map(|(_, text)| {
                Pattern::new(text.as_str())
                    .map_err(|error| ApiError::bad_request(format!("parameter `pattern`: {error}")))
            })
            .collect::<Result<_, _>>()?;
        if patterns.len() > PATTERNS_MAX {
            let message =
                format!("parameter `pattern` is given {} times, at most {PATTERNS_MAX} are taken", patterns.len());
            return Err(ApiError::bad_request(message));
        }
        Ok(patterns)
    }

    /// The patterns, at least one.
    pub fn some_patterns(&self) -> Result<Vec<Pattern>, ApiError> {
        let patterns = self.patterns()?;
        if patterns.is_empty() {
            return Err(ApiError::bad_request(
                "parameter `pattern` is missing; write pattern=MemAvailable, or pattern=/** for every sensor",
            ));
        }
        Ok(patterns)
    }
}

/// The job that a request is restricted to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JobFilter {
    pub id: String,
    /// Of several jobs of this id the newest that began by this time.
    pub at: Option<i64>,
    /// Whether the request gives the start and the end of its range.
    pub range_given: (bool, bool),
}

pub(super) fn of_job(params: &QueryParams, now: Timestamp) -> Result<Option<JobFilter>, ApiError> {
    let at = params.read("at", |text| Timestamp::parse(text, now))?.map(|time| time.0);
    let id = params
        .read("job", |text| if text.is_empty() { Err("is empty; write a job's id") } else { Ok(text.to_owned()) })?;
    if id.is_none() && at.is_some() {
        return Err(ApiError::bad_request("parameter `at` selects one of several jobs with the same id; add job=ID"));
    }
    let range_given = (params.get("from").is_some(), params.get("to").is_some());
    Ok(id.map(|id| JobFilter { id, at, range_given }))
}

pub(super) fn check_range(from: Timestamp, to: Timestamp) -> Result<(), ApiError> {
    if from <= to {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("parameter `to` ({to}) is before `from` ({from}); exchange them")))
}

pub(super) fn query(uri: &Uri, now: Timestamp) -> Result<(Query, Option<ResponseFormat>, Option<JobFilter>), ApiError> {
    let params = QueryParams::of(uri, QUERY)?;
    let from = params.read("from", |text| Timestamp::parse(text, now))?.unwrap_or(now.saturating_add(-FROM_DEFAULT_NS));
    let query = Query {
        patterns: params.some_patterns()?,
        from,
        to: params.read("to", |text| Timestamp::parse_end(text, from, now))?.unwrap_or(now),
        every: params.read("every", Interval::parse)?,
        points: params.read("points", |text| {
            text.parse().map_err(|_| format!("{text:?} is not a number of windows; write one such as 500"))
        })?,
        agg: params.read("agg", str::parse::<Agg>)?,
        op: params.read("op", str::parse::<Op>)?,
        across: across(&params)?,
        unit: params.read("unit", |text| Unit::parse(text).map(|unit| unit.code().to_owned()))?,
        limit: params.read("limit", |text| {
            text.parse().map_err(|_| format!("{text:?} is not a number of rows; write one such as 1000"))
        })?,
    };
    let job = of_job(&params, now)?;
    if job.is_none() {
        if params.get("to").is_none() && from > now {
            let text = format!("parameter `from` ({from}) is in the future; write a time in the past, such as -10m");
            return Err(ApiError::bad_request(text));
        }
        check_range(query.from, query.to)?;
    }
    Ok((query, params.read("format", str::parse::<ResponseFormat>)?, job))
}

fn across(params: &QueryParams) -> Result<Option<Across>, ApiError> {
    let levels = params.read("levels", |text| {
        text.parse().map_err(|_| format!("{text:?} is not a number of levels; write one such as 2"))
    })?;
    match params.read("across", str::parse::<Agg>)? {
        Some(agg) => Ok(Some(Across { agg, levels })),
        None if levels.is_some() => Err(ApiError::bad_request(
            "parameter `levels` divides the sensors of `across`; write that too, such as across=sum",
        )),
        None => Ok(None),
    }
}
