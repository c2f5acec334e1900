//! What the sender shares with the rest of the agent.

use std::sync::Arc;

use crate::counters::AgentCounters;
use crate::identity::AgentIdentity;
use crate::jobs::control::ControlChannel;
use crate::jobs::pending_records::RecordsSlot;
use crate::status::AgentStatus;
use crate::waker::Waker;

/// Handles that the sender is constructed with.
#[derive(Debug, Clone)]
pub struct SenderContext {
    pub identity: Arc<AgentIdentity>,
    pub counters: Arc<AgentCounters>,
    pub status: Arc<AgentStatus>,
    pub control: Arc<ControlChannel>,
    pub records: Arc<RecordsSlot>,
    pub waker: Arc<Waker>,
}
