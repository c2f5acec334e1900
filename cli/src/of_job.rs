//! `--job` and `--at`: what a question is restricted to.

use clap::Args;
use wholegrain_model::Timestamp;

use crate::failure::Failure;

/// The job that a question is about.
#[derive(Args)]
pub struct JobOption {
    /// Only this job: its own sensors, of its nodes those of the CPUs and devices that it has and of the node as a whole, and its time on each
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Of several jobs that had this id, the newest that had begun by then
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, requires = "job")]
    pub at: Option<String>,
}

impl JobOption {
    /// The parameters of a request.
    pub fn parameters(&self, now: Timestamp) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut parameters: Vec<_> = self.job.iter().map(|job| ("job", job.clone())).collect();
        if let Some(at) = &self.at {
            let at = Timestamp::parse(at, now).map_err(|error| Failure::Usage(format!("--at: {error}")))?;
            parameters.push(("at", at.to_string()));
        }
        Ok(parameters)
    }
}
