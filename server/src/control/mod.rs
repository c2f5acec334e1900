//! Commands to agents, and their answers: how a change reaches all nodes of a job at once.
//!
//! - Input: a request of a token for a job.
//! - Output: one message to each connected agent of the job, on `wholegrain/v1/control/<agent>`; the answer of each.
//! - Never: a command that waits for an agent to reconnect: it would run when nobody expects it any more.
//!
//! Commands are authorized twice: here, where tokens and jobs of all nodes are known, and by each agent, which has its own limits and its own audit
//! log.

mod notices;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use wholegrain_api::NodeResponse;
use wholegrain_transport::topics::Topic;

use crate::access::tokens::Bearer;
use crate::log_limit::{LogLimit, quoted};

/// How long an agent may take to answer. It runs a command within milliseconds, but may have others before it.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);
/// The most agents that one command goes to.
pub const NODES_MAX: usize = 20_000;
/// The largest answer, in bytes.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Messages to connected agents.
pub trait AgentMessages {
    /// Whether the agent subscribes to this topic now.
    fn is_subscribed(&self, topic: &str, agent: &str) -> bool;
    /// Sends a message with QoS 0.
    fn send(&self, topic: &str, payload: Bytes);
}

fn failed(node: &str, error: impl Into<String>, silent: bool) -> NodeResponse {
    NodeResponse { node: node.to_owned(), ok: None, error: Some(error.into()), silent }
}

/// Commands that wait for their answers.
#[derive(Debug, Default)]
pub struct AgentControl {
    last: AtomicU64,
    waiting: Mutex<HashMap<u64, PendingCommand>>,
    /// Rate limit of log lines about notices of agents.
    notices: LogLimit,
}

#[derive(Debug)]
struct PendingCommand {
    agent: String,
    answer: oneshot::Sender<Value>,
}

/// Removes a pending command if the request is cancelled before the answer arrives.
struct PendingCommandGuard<'a> {
    control: &'a AgentControl,
    id: u64,
}

impl Drop for PendingCommandGuard<'_> {
    fn drop(&mut self) {
        self.control.lock().remove(&self.id);
    }
}

impl AgentControl {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, PendingCommand>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends `what` (`{"action": …}` or `{"show": …}`) to all `nodes` at once, and waits for their answers.
    pub async fn ask(
        &self,
        messages: &impl AgentMessages,
        bearer: &Bearer,
        nodes: &[String],
        what: &Value,
    ) -> Vec<NodeResponse> {
        join_all(nodes.iter().take(NODES_MAX).map(|node| self.ask_one(messages, bearer, node, what))).await
    }

    async fn ask_one(&self, messages: &impl AgentMessages, bearer: &Bearer, node: &str, what: &Value) -> NodeResponse {
        let topic = Topic::Control { agent: node }.to_string();
        if !messages.is_subscribed(&topic, node) {
            return failed(node, "the agent is not connected to this server", true);
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut message = what.clone();
        message["id"] = json!(id);
        message["who"] = json!({ "name": bearer.name, "role": bearer.role });
        let (answer, answered) = oneshot::channel();
        self.lock().insert(id, PendingCommand { agent: node.to_owned(), answer });
        let _place = PendingCommandGuard { control: self, id };
        // QoS 0: a disconnected agent must not receive the command later.
        messages.send(&topic, Bytes::from(message.to_string()));
        match tokio::time::timeout(ANSWER_TIME_MAX, answered).await {
            Ok(Ok(mut answer)) => match (answer["ok"].take(), answer["error"].as_str()) {
                (_, Some(error)) => failed(node, error, false),
                (ok, None) => NodeResponse { node: node.to_owned(), ok: Some(ok), error: None, silent: false },
            },
            _ => {
                let why = format!("no answer within {} s; whether it was done is not known", ANSWER_TIME_MAX.as_secs());
                failed(node, why, true)
            }
        }
    }

    /// Handles an agent's answer, or a notice, which is logged. An answer that nobody waits for, or from another agent, is dropped.
    pub(crate) fn answered(&self, agent: &str, payload: &[u8]) {
        if payload.len() > ANSWER_BYTES_MAX {
            return;
        }
        let Ok(mut answer) = serde_json::from_slice::<Value>(payload) else { return };
        if let Some(notice) = answer.get_mut("notice") {
            if let Some(said) = notices::text(&quoted(agent), notice.take()) {
                self.notices.warn(format_args!("{said}"));
            }
            return;
        }
        let Some(id) = answer["id"].as_u64() else { return };
        let mut waiting = self.lock();
        if waiting.get(&id).is_some_and(|waiting| waiting.agent == agent)
            && let Some(PendingCommand { answer: sender, .. }) = waiting.remove(&id)
        {
            // An error means that the request was cancelled.
            let _ = sender.send(answer);
        }
    }
}
