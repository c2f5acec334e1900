//! The options `--job` and `--at`, and the arguments that name a job.

use clap::Args;
use serde::de::DeserializeOwned;
use wholegrain_api::paths;
use wholegrain_model::Timestamp;

use crate::connection::{Connection, Response};
use crate::failure::Failure;
use crate::output::values;
use crate::socket::encoded;

/// The job to which a query is restricted.
#[derive(Args)]
pub struct JobOption {
    /// Only this job: its own sensors, and its nodes' sensors of its CPUs and devices and of the node as a whole, over its time on each node
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Select one of several jobs with this id: the newest that began by this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, requires = "job")]
    at: Option<String>,
}

impl JobOption {
    /// The parameters of a request.
    pub fn parameters(&self) -> Result<Vec<(&'static str, String)>, Failure> {
        let job = self.job.iter().map(|job| ("job", job.clone()));
        Ok(job.chain(at_parameter(self.at.as_deref())?).collect())
    }

    /// The records of the job, if the option names one.
    pub fn fetch<T: DeserializeOwned>(&self, connection: &Connection, path: &str) -> Result<Option<T>, Failure> {
        let Some(job) = &self.job else { return Ok(None) };
        find(connection, path, job, at_parameter(self.at.as_deref())?.into_iter().collect())?.json().map(Some)
    }
}

/// The job that a subcommand is about.
#[derive(Args)]
pub struct JobArgument {
    /// The job's id, or its other id
    #[arg(value_name = "ID")]
    pub job: String,
    /// Select one of several jobs with this id: the newest that began by this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    at: Option<String>,
}

impl JobArgument {
    /// Requests a path of the job with further parameters.
    pub fn find(
        &self,
        connection: &Connection,
        path: &str,
        mut parameters: Vec<(&'static str, String)>,
    ) -> Result<Response, Failure> {
        parameters.extend(at_parameter(self.at.as_deref())?);
        find(connection, path, &self.job, parameters)
    }
}

/// A path of one job.
pub fn job_path(path: &str, job: &str) -> String {
    paths::of_job(path, &encoded(job))
}

fn find(
    connection: &Connection,
    path: &str,
    job: &str,
    parameters: Vec<(&'static str, String)>,
) -> Result<Response, Failure> {
    connection.get(job_path(path, job)).queries(&parameters).find()
}

/// The parameter `at` of an option `--at`.
fn at_parameter(at: Option<&str>) -> Result<Option<(&'static str, String)>, Failure> {
    let parse = |at| Timestamp::parse(at, values::now()).map_err(|error| Failure::Usage(format!("--at: {error}")));
    Ok(at.map(parse).transpose()?.map(|at| ("at", at.to_string())))
}
