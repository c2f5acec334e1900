//! Commands of the server about jobs, which it sends to all nodes of a job.
//!
//! - In: messages on `wholegrain/v1/control/<agent>`, where only the server publishes.
//! - Out: one response to each on `wholegrain/v1/response/<agent>`. A command passes the same permissions and limits as one on the node.
//! - Never: a sender thread that waits for a command; a command that is stored for later.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CallerIdentity, JobsAction, JobsCommand, JobsOutcome, JobsView, Role, SharedJobsView};
use crate::sync::lock;
use crate::waker::Waker;

/// Commands that may wait; further ones are refused as busy.
pub const COMMANDS_MAX: usize = 64;
/// Responses that wait to be sent; beyond it the oldest is dropped, whose caller has given up by then.
pub const RESPONSES_MAX: usize = 256;
/// The largest command, in bytes.
pub const COMMAND_BYTES_MAX: usize = 64 << 10;
/// The stack of the thread: 256 KiB.
const STACK_BYTES: usize = 256 << 10;

/// A message of the server.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerCommand {
    /// The response has the same number.
    id: u64,
    who: ServerCaller,
    /// The change; absent in a request for `show`.
    action: Option<JobsAction>,
    /// The job whose metrics and settings are requested.
    show: Option<String>,
}

/// A caller that the server has authenticated.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerCaller {
    name: String,
    role: Role,
}

impl ServerCaller {
    fn identity(self) -> CallerIdentity {
        let user = (self.role == Role::User).then(|| self.name.clone());
        CallerIdentity {
            name: format!("{} through the server", self.name),
            role: self.role,
            uid: None,
            user,
            pid: None,
        }
    }
}

/// The result that the agent sends back.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum CommandOutcome {
    Ok(Value),
    Error(String),
}

#[derive(Debug, Serialize)]
struct CommandResponse {
    id: u64,
    #[serde(flatten)]
    outcome: CommandOutcome,
}

/// Passes commands from the sender's thread, which must not wait, to the thread that executes them, and responses back.
#[derive(Debug)]
pub struct ControlChannel {
    queues: Mutex<ControlQueues>,
    ready: Condvar,
    sender_waker: Arc<Waker>,
}

#[derive(Debug, Default)]
struct ControlQueues {
    commands: VecDeque<Bytes>,
    responses: VecDeque<Vec<u8>>,
    refuses: bool,
    stopped: bool,
}

impl ControlChannel {
    pub fn new(sender_waker: Arc<Waker>) -> Self {
        Self { queues: Mutex::default(), ready: Condvar::new(), sender_waker }
    }

    /// Queues a message of the server. Never waits.
    pub fn take(&self, payload: Bytes) {
        let mut queues = lock(&self.queues);
        if queues.refuses {
            let why = "this agent takes no commands of the server ([jobs] server_commands = false)";
            queues.respond(id_of(&payload), CommandOutcome::Error(why.to_owned()));
        } else if payload.len() > COMMAND_BYTES_MAX {
            tracing::warn!(
                "discarded a command of the server of {} bytes; at most {COMMAND_BYTES_MAX} are allowed",
                payload.len()
            );
        } else if queues.commands.len() >= COMMANDS_MAX {
            let why = format!("{COMMANDS_MAX} commands already wait for the agent; try again in a moment");
            queues.respond(id_of(&payload), CommandOutcome::Error(why));
        } else {
            queues.commands.push_back(payload);
            self.ready.notify_one();
        }
    }

    /// Sets whether commands are executed or refused.
    pub fn accept(&self, accepts: bool) {
        lock(&self.queues).refuses = !accepts;
    }

    /// Sends the server a notice for its log.
    pub fn notify(&self, notice: &Value) {
        lock(&self.queues).push(serde_json::json!({ "notice": notice }).to_string().into_bytes());
        self.sender_waker.wake();
    }

    /// The next response or notice to be sent.
    pub fn next_response(&self) -> Option<Vec<u8>> {
        lock(&self.queues).responses.pop_front()
    }

    /// Ends the thread that executes commands.
    pub fn stop(&self) {
        lock(&self.queues).stopped = true;
        self.ready.notify_all();
    }

    /// Waits for the next command; `None` after [`ControlChannel::stop`].
    fn next_command(&self) -> Option<Bytes> {
        let mut queues = lock(&self.queues);
        loop {
            if queues.stopped {
                return None;
            }
            if let Some(command) = queues.commands.pop_front() {
                return Some(command);
            }
            queues = self.ready.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn respond(&self, id: u64, outcome: CommandOutcome) {
        lock(&self.queues).respond(id, outcome);
        self.sender_waker.wake();
    }
}

impl ControlQueues {
    fn respond(&mut self, id: u64, outcome: CommandOutcome) {
        // A structure of plain fields: serialization cannot fail.
        self.push(serde_json::to_vec(&CommandResponse { id, outcome }).unwrap_or_default());
    }

    fn push(&mut self, message: Vec<u8>) {
        if self.responses.len() >= RESPONSES_MAX {
            self.responses.pop_front();
        }
        self.responses.push_back(message);
    }
}

/// Starts the thread that executes commands by `run`; it ends with [`ControlChannel::stop`].
pub fn start(
    channel: Arc<ControlChannel>,
    agent: String,
    view: Arc<SharedJobsView>,
    run: impl Fn(JobsCommand) -> Result<JobsOutcome, String> + Send + 'static,
) -> std::io::Result<()> {
    std::thread::Builder::new().name("control".into()).stack_size(STACK_BYTES).spawn(move || {
        while let Some(payload) = channel.next_command() {
            let (id, outcome) = execute(&payload, &agent, &view.get(), &run);
            channel.respond(id, outcome);
        }
    })?;
    Ok(())
}

/// The number of any message; 0 if it has none.
fn id_of(payload: &[u8]) -> u64 {
    let message = serde_json::from_slice::<Value>(payload).ok();
    message.and_then(|message| message["id"].as_u64()).unwrap_or(0)
}

/// Executes a message. An unreadable one gets an error as its response.
fn execute<T: Serialize>(
    payload: &[u8],
    agent: &str,
    view: &JobsView,
    run: impl FnOnce(JobsCommand) -> Result<T, String>,
) -> (u64, CommandOutcome) {
    let message: ServerCommand = match serde_json::from_slice(payload) {
        Ok(message) => message,
        Err(error) => {
            return (id_of(payload), CommandOutcome::Error(format!("the agent cannot read the command: {error}")));
        }
    };
    let id = message.id;
    let who = message.who.identity();
    let outcome = match (message.action, message.show) {
        (Some(action), None) => {
            tracing::info!("{action:?}, requested by {}", who.name);
            run(JobsCommand { who, action })
                .and_then(|done| serde_json::to_value(done).map_err(|error| error.to_string()))
        }
        (None, Some(job)) => show(agent, view, &who, &job),
        _ => Err("a command has either `action` or `show`".to_owned()),
    };
    (id, outcome.map_or_else(CommandOutcome::Error, CommandOutcome::Ok))
}

/// A running job's metrics with their settings.
fn show(agent: &str, view: &JobsView, who: &CallerIdentity, id: &str) -> Result<Value, String> {
    let job = view.jobs.iter().find(|job| job.has_id(id) && job.is_visible_to(who));
    let job = job.ok_or_else(|| format!("job {id} does not run on {agent}"))?;
    serde_json::to_value(&**job).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(payload: &str, expected: &str) {
        let mut command = None;
        let (id, outcome) = execute(payload.as_bytes(), "n1", &JobsView::default(), |given: JobsCommand| {
            command = Some(given);
            Ok("done")
        });
        let response = serde_json::to_string(&CommandResponse { id, outcome }).unwrap();
        assert!(response.contains(expected), "{payload}: {response}");
        if let Some(command) = command {
            assert_eq!((command.who.uid, command.who.name.as_str()), (None, "alice through the server"));
        }
    }

    #[test]
    fn every_message_has_a_response() {
        let add = r#""action":{"add":{"metrics":["perf/*"],"jobs":"4711","every":"1ms","for":"10m"}}"#;
        check(&format!(r#"{{"id":7,"who":{{"name":"alice","role":"user"}},{add}}}"#), r#"{"id":7,"ok":"done"}"#);
        check(&format!(r#"{{"id":7,"who":{{"name":"alice","role":"god"}},{add}}}"#), r#"{"id":7,"error":"#);
        check(r#"{"id":8,"who":{"name":"alice","role":"admin"},"show":"1"}"#, "job 1 does not run on n1");
        check(r#"{"id":9,"who":{"name":"alice","role":"admin"}}"#, "either `action` or `show`");
        check(r#"{"id":10,"who":{"name":"alice","role":"admin"},"action":{"explode":1}}"#, r#"{"id":10,"error":"#);
        check("\u{1}garbage", r#"{"id":0,"error":"the agent cannot read"#);
    }

    #[test]
    fn commands_over_the_bound_are_refused_at_once() {
        let control = ControlChannel::new(Arc::new(Waker::new().unwrap()));
        for id in 0..COMMANDS_MAX + 3 {
            control.take(Bytes::from(format!(r#"{{"id":{id}}}"#)));
        }
        control.take(Bytes::from(vec![b' '; COMMAND_BYTES_MAX + 1]));
        let responses: Vec<Vec<u8>> = std::iter::from_fn(|| control.next_response()).collect();
        assert_eq!(responses.len(), 3);
        assert!(String::from_utf8_lossy(&responses[0]).contains(r#"{"id":64,"error":"64 commands already wait"#));
        let commands = std::iter::from_fn(|| lock(&control.queues).commands.pop_front()).count();
        assert_eq!(commands, COMMANDS_MAX);
        control.accept(false);
        control.take(Bytes::from_static(br#"{"id":5}"#));
        let response = control.next_response().unwrap();
        assert!(String::from_utf8_lossy(&response).contains(r#"{"id":5,"error":"this agent takes no commands"#));
        assert!(lock(&control.queues).commands.is_empty());
        control.notify(&serde_json::json!({ "clock_step": 1 }));
        assert_eq!(control.next_response().unwrap(), br#"{"notice":{"clock_step":1}}"#);
    }
}
