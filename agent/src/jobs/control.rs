//! Orders that come from the server over MQTT, for jobs whose other nodes get the same.
//!
//! - In: messages on `wholegrain/v1/control/<agent>`, where only the server publishes.
//! - Out: one answer to each, on `wholegrain/v1/answer/<agent>`; what was ordered goes through the same desk, the same
//!   permissions and the same limits as what is asked on the node.
//! - Never: a sender that waits for a command to finish; a command that is kept for later.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CallerIdentity, JobsAction, JobsCommand, Role};
use crate::manager::ManagerHandle;
use crate::state::{AgentState, lock};

/// Commands that may wait; one more is answered at once with "busy".
pub const ORDERS_MAX: usize = 64;
/// Answers that wait to be sent; the oldest is dropped for one more: whoever asked has given up by then.
pub const ANSWERS_MAX: usize = 256;
/// The largest order, in bytes.
pub const ORDER_BYTES_MAX: usize = 64 << 10;
/// The stack of the thread: 256 KiB.
const STACK_BYTES: usize = 256 << 10;

/// What the server sends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerCommand {
    /// Comes back in the answer.
    id: u64,
    /// Who asks the server.
    who: ServerCaller,
    /// What shall be done; nothing, when only `show` is asked.
    order: Option<JobsAction>,
    /// The job whose metrics and settings are requested.
    show: Option<String>,
}

/// Somebody whom the server knows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerCaller {
    name: String,
    role: Role,
}

impl ServerCaller {
    fn who(self) -> CallerIdentity {
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

/// What the agent sends back.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum CommandOutcome {
    /// What was done or asked for.
    Ok(Value),
    Error(String),
}

#[derive(Debug, Serialize)]
struct CommandResponse {
    id: u64,
    #[serde(flatten)]
    outcome: CommandOutcome,
}

/// Between the sender's thread, which must not wait, and the thread that executes commands.
#[derive(Debug, Default)]
pub struct ControlChannel {
    inner: Mutex<ControlQueues>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct ControlQueues {
    orders: VecDeque<Bytes>,
    answers: VecDeque<Vec<u8>>,
    refused: bool,
    stopped: bool,
}

impl ControlChannel {
    /// Takes a message of the server. Never waits.
    pub fn take(&self, payload: Bytes) {
        let mut inner = lock(&self.inner);
        if inner.refused {
            let why = "this agent takes no orders of the server ([jobs] orders = false)";
            inner.answer(id_of(&payload), CommandOutcome::Error(why.to_owned()));
        } else if payload.len() > ORDER_BYTES_MAX {
            tracing::warn!(
                "the server sent an order of {} bytes; more than {ORDER_BYTES_MAX} are not read",
                payload.len()
            );
        } else if inner.orders.len() >= ORDERS_MAX {
            let why = format!("{ORDERS_MAX} commands already wait for the agent; try again in a moment");
            inner.answer(id_of(&payload), CommandOutcome::Error(why));
        } else {
            inner.orders.push_back(payload);
            self.ready.notify_one();
        }
    }

    /// Whether commands are executed from now on, or refused.
    pub fn execute(&self, orders: bool) {
        lock(&self.inner).refused = !orders;
    }

    /// Tells the server something of this agent that nobody asked for, for its log.
    pub fn tell(&self, notice: &Value) {
        lock(&self.inner).push(serde_json::json!({ "notice": notice }).to_string().into_bytes());
    }

    /// The next answer or notice to be sent.
    pub fn next_answer(&self) -> Option<Vec<u8>> {
        lock(&self.inner).answers.pop_front()
    }

    /// Ends the thread that executes commands.
    pub fn stop(&self) {
        lock(&self.inner).stopped = true;
        self.ready.notify_all();
    }

    fn next_order(&self) -> Option<Bytes> {
        let mut inner = lock(&self.inner);
        loop {
            if inner.stopped {
                return None;
            }
            if let Some(order) = inner.orders.pop_front() {
                return Some(order);
            }
            inner = self.ready.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl ControlQueues {
    fn answer(&mut self, id: u64, outcome: CommandOutcome) {
        // A structure of plain fields: writing it cannot fail.
        self.push(serde_json::to_vec(&CommandResponse { id, outcome }).unwrap_or_default());
    }

    fn push(&mut self, message: Vec<u8>) {
        if self.answers.len() >= ANSWERS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back(message);
    }
}

/// Starts the thread that executes commands; it ends with [`ControlChannel::stop`].
pub fn start(state: Arc<AgentState>, manager_handle: ManagerHandle) -> std::io::Result<()> {
    std::thread::Builder::new().name("control".into()).stack_size(STACK_BYTES).spawn(move || {
        while let Some(payload) = state.control.next_order() {
            let (id, outcome) = execute(&payload, &state, |command| {
                manager_handle.execute_jobs(command).map_err(|error| error.to_string())
            });
            lock(&state.control.inner).answer(id, outcome);
            state.outbox.waker().wake();
        }
    })?;
    Ok(())
}

/// The number of a message that may be anything; 0 if it has none.
fn id_of(payload: &[u8]) -> u64 {
    let message = serde_json::from_slice::<Value>(payload).ok();
    message.and_then(|message| message["id"].as_u64()).unwrap_or(0)
}

/// Does what a message says. What cannot be read is answered too, under the number 0 if it has none.
fn execute<T: Serialize>(
    payload: &[u8],
    state: &AgentState,
    run: impl FnOnce(JobsCommand) -> Result<T, String>,
) -> (u64, CommandOutcome) {
    let message: ServerCommand = match serde_json::from_slice(payload) {
        Ok(message) => message,
        Err(error) => {
            return (id_of(payload), CommandOutcome::Error(format!("the agent cannot read the order: {error}")));
        }
    };
    let id = message.id;
    let who = message.who.who();
    let outcome = match (message.order, message.show) {
        (Some(order), None) => {
            tracing::info!("{order:?}, asked by {}", who.name);
            run(JobsCommand { who, order })
                .and_then(|done| serde_json::to_value(done).map_err(|error| error.to_string()))
        }
        (None, Some(job)) => show(state, &who, &job),
        _ => Err("an order has either `order` or `show`".to_owned()),
    };
    (id, outcome.map_or_else(CommandOutcome::Error, CommandOutcome::Ok))
}

/// A running job's metrics and what is set for them.
fn show(state: &AgentState, who: &CallerIdentity, id: &str) -> Result<Value, String> {
    let view = state.jobs();
    let is_it = |record: &wholegrain_model::JobRecord| {
        record.job == id || record.level == id || record.also.as_deref() == Some(id)
    };
    let may =
        |record: &wholegrain_model::JobRecord| who.role != Role::User || who.owns(record.uid, record.user.as_deref());
    let job = view.jobs.iter().find(|job| is_it(&job.record) && may(&job.record));
    let job = job.ok_or_else(|| format!("job {id} does not run on {}", state.name))?;
    serde_json::to_value(&**job).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn state() -> AgentState {
        let config = crate::Config::parse(Path::new("agent.toml"), "name = \"n1\"\n", Path::new(".")).unwrap();
        AgentState::new(&config).unwrap()
    }

    #[track_caller]
    fn check(payload: &str, expected: &str) {
        let (state, mut asked) = (state(), None);
        let (id, outcome) = execute(payload.as_bytes(), &state, |command: JobsCommand| {
            asked = Some(command);
            Ok("done")
        });
        let answer = serde_json::to_string(&CommandResponse { id, outcome }).unwrap();
        assert!(answer.contains(expected), "{payload}: {answer}");
        if let Some(command) = asked {
            assert_eq!((command.who.uid, command.who.name.as_str()), (None, "alice through the server"));
        }
    }

    #[test]
    fn every_message_has_an_answer() {
        let add = r#""order":{"add":{"metrics":["perf/*"],"jobs":"4711","every":"1ms","for":"10m"}}"#;
        check(&format!(r#"{{"id":7,"who":{{"name":"alice","role":"user"}},{add}}}"#), r#"{"id":7,"ok":"done"}"#);
        check(&format!(r#"{{"id":7,"who":{{"name":"alice","role":"god"}},{add}}}"#), r#"{"id":7,"error":"#);
        check(r#"{"id":8,"who":{"name":"alice","role":"admin"},"show":"1"}"#, "job 1 does not run on n1");
        check(r#"{"id":9,"who":{"name":"alice","role":"admin"}}"#, "either `order` or `show`");
        check(r#"{"id":10,"who":{"name":"alice","role":"admin"},"order":{"explode":1}}"#, r#"{"id":10,"error":"#);
        check("\u{1}garbage", r#"{"id":0,"error":"the agent cannot read"#);
    }

    #[test]
    fn more_orders_than_are_kept_are_answered_at_once() {
        let control = ControlChannel::default();
        for id in 0..ORDERS_MAX + 3 {
            control.take(Bytes::from(format!(r#"{{"id":{id}}}"#)));
        }
        control.take(Bytes::from(vec![b' '; ORDER_BYTES_MAX + 1]));
        let answers: Vec<Vec<u8>> = std::iter::from_fn(|| control.next_answer()).collect();
        assert_eq!(answers.len(), 3);
        assert!(String::from_utf8_lossy(&answers[0]).contains(r#"{"id":64,"error":"64 commands already wait"#));
        let orders = std::iter::from_fn(|| lock(&control.inner).orders.pop_front()).count();
        assert_eq!(orders, ORDERS_MAX);
        control.execute(false);
        control.take(Bytes::from_static(br#"{"id":5}"#));
        let answer = control.next_answer().unwrap();
        assert!(String::from_utf8_lossy(&answer).contains(r#"{"id":5,"error":"this agent takes no orders"#));
        assert!(lock(&control.inner).orders.is_empty());
        control.tell(&serde_json::json!({ "clock_step": 1 }));
        assert_eq!(control.next_answer().unwrap(), br#"{"notice":{"clock_step":1}}"#);
    }
}
