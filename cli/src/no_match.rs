//! Messages for patterns that match no sensor.

use wholegrain_model::Pattern;

use crate::connection::Connection;
use crate::failure::Failure;

fn list(patterns: &[Pattern]) -> String {
    let patterns: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
    patterns.join(" ")
}

/// The patterns match no sensor of a job.
pub fn no_sensor_of_job(job: &str, patterns: &[Pattern]) -> Failure {
    let patterns = list(patterns);
    Failure::NothingMatched(format!(
        "no sensor of job {job} matches {patterns}; `wholegrain sensors --job {job}` lists its sensors"
    ))
}

/// The patterns match no sensor; suggests a similar name.
pub fn no_sensor(connection: &Connection, patterns: &[Pattern]) -> Failure {
    let nearest = patterns.iter().find_map(|pattern| connection.nearest_name(pattern.as_str()));
    let advice = match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`wholegrain sensors` lists all sensors".to_owned(),
    };
    Failure::NothingMatched(format!("no sensor matches {}; {advice}", list(patterns)))
}
