//! Parameters of requests, and messages that name the one that is wrong.

use axum::extract::Query as Pairs;
use axum::http::Uri;
use wholegrain_model::{Interval, Pattern, Timestamp, config};
use wholegrain_query::{Agg, Op, PATTERNS_MAX, Query};

use super::ApiError;
use super::format::Format;

/// Parameters of `/api/v1/sensors`.
pub(super) const SENSORS: &[&str] = &["pattern"];
/// Parameters of `/api/v1/newest`.
pub(super) const NEWEST: &[&str] = &["pattern"];
/// Parameters of `/api/v1/query`.
pub(super) const QUERY: &[&str] = &["pattern", "from", "to", "every", "points", "agg", "op", "limit", "format"];
/// Parameters of `/api/v1/watch`.
pub(super) const WATCH: &[&str] = &["pattern"];
/// Where a query begins unless it says so.
pub(super) const FROM_DEFAULT: &str = "-1h";

/// The names and values of a request.
pub(super) struct Params(Vec<(String, String)>);

impl Params {
    /// Takes a request's query, whose names must be among `known`.
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

    /// A parameter's value, read by `read`, whose error says what is wrong with it.
    pub fn read<T, E: std::fmt::Display>(
        &self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        read(text).map(Some).map_err(|error| ApiError::bad_request(format!("parameter `{name}`: {error}")))
    }

    /// The patterns, none if there is none.
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

/// Reads the parameters of `/api/v1/query`.
pub(super) fn query(uri: &Uri, now: Timestamp) -> Result<(Query, Format), ApiError> {
    let params = Params::of(uri, QUERY)?;
    let time = |name: &str, default: &str| {
        let given = params.read(name, |text| Timestamp::parse(text, now))?;
        let default = Timestamp::parse(default, now).map_err(|error| ApiError::internal(error.to_string()));
        given.map_or_else(|| default, Ok)
    };
    let query = Query {
        patterns: params.some_patterns()?,
        from: time("from", FROM_DEFAULT)?,
        to: time("to", "now")?,
        every: params.read("every", Interval::parse)?,
        points: params.read("points", |text| {
            text.parse().map_err(|_| format!("{text:?} is not a number of windows; write one such as 500"))
        })?,
        agg: params.read("agg", str::parse::<Agg>)?,
        op: params.read("op", str::parse::<Op>)?,
        limit: params.read("limit", |text| {
            text.parse().map_err(|_| format!("{text:?} is not a number of rows; write one such as 1000"))
        })?,
    };
    if query.to < query.from {
        let message = format!("parameter `to` ({}) is before `from` ({}); exchange them", query.to, query.from);
        return Err(ApiError::bad_request(message));
    }
    Ok((query, params.read("format", str::parse::<Format>)?.unwrap_or_default()))
}
