//! Orders to agents, and their answers: how a change reaches all nodes of a job at once.
//!
//! - In: what somebody with a token wants of a job.
//! - Out: one message to each of the job's agents that is connected, on `wholegrain/v1/control/<agent>`; what each answered.
//! - Never: an order that waits for an agent to come back: it would be obeyed when nobody expects it any more.
//!
//! Who may order what is decided twice: here, where tokens and jobs of all nodes are known, and by each agent, which has its
//! own limits and writes its own audit log.

mod notices;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use wholegrain_transport::topics::Topic;

use crate::access::tokens::Bearer;
use crate::broker::log_limit::{LogLimit, quoted};
use crate::broker::subscriptions::Subscriptions;

/// How long an agent may take to answer: 3 s. It obeys within milliseconds, but may have other orders before it.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);
/// The most agents that one order goes to.
pub const NODES_MAX: usize = 20_000;
/// The largest answer that is read, in bytes.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

/// What came of an order on one node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeAnswer {
    /// The agent's name.
    pub node: String,
    /// What it did; `None` when it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether nobody answered: it is not known whether the order was obeyed, unless the node was not connected.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
}

impl NodeAnswer {
    fn failed(node: &str, error: impl Into<String>, silent: bool) -> Self {
        Self { node: node.to_owned(), ok: None, error: Some(error.into()), silent }
    }
}

/// Orders that wait for their answers.
#[derive(Debug, Default)]
pub struct AgentControl {
    last: AtomicU64,
    waiting: Mutex<HashMap<u64, PendingCommand>>,
    /// Lines of the log about what agents tell.
    notices: LogLimit,
}

#[derive(Debug)]
struct PendingCommand {
    agent: String,
    answer: oneshot::Sender<Value>,
}

/// What is forgotten when whoever asked goes before the answer comes.
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

    /// Sends `what` (`{"order": …}` or `{"show": …}`) to all `nodes` at once, and waits for what they say.
    pub async fn ask(
        &self,
        subscriptions: &Subscriptions,
        bearer: &Bearer,
        nodes: &[String],
        what: &Value,
    ) -> Vec<NodeAnswer> {
        join_all(nodes.iter().take(NODES_MAX).map(|node| self.ask_one(subscriptions, bearer, node, what))).await
    }

    async fn ask_one(&self, subscriptions: &Subscriptions, bearer: &Bearer, node: &str, what: &Value) -> NodeAnswer {
        let topic = Topic::Control { agent: node }.to_string();
        if !subscriptions.is_heard(&topic, node) {
            return NodeAnswer::failed(node, "the agent is not connected to this server", true);
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut message = what.clone();
        message["id"] = json!(id);
        message["who"] = json!({ "name": bearer.name, "role": bearer.role });
        let (answer, answered) = oneshot::channel();
        self.lock().insert(id, PendingCommand { agent: node.to_owned(), answer });
        let _place = PendingCommandGuard { control: self, id };
        // QoS 0: an agent that is away at this moment is not to find the order later.
        subscriptions.publish(0, &topic, &Bytes::from(message.to_string()), false);
        match tokio::time::timeout(ANSWER_TIME_MAX, answered).await {
            Ok(Ok(mut answer)) => match (answer["ok"].take(), answer["error"].as_str()) {
                (_, Some(error)) => NodeAnswer::failed(node, error, false),
                (ok, None) => NodeAnswer { node: node.to_owned(), ok: Some(ok), error: None, silent: false },
            },
            _ => {
                let why = format!("no answer within {} s; whether it was done is not known", ANSWER_TIME_MAX.as_secs());
                NodeAnswer::failed(node, why, true)
            }
        }
    }

    /// An agent has answered, or tells something of itself, which is logged. What nobody waits for, or another agent was asked, is dropped.
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
            // An error says that nobody waits any more.
            let _ = sender.send(answer);
        }
    }
}
