//! The handles that the API is constructed with.

use std::sync::Arc;

use crate::batch::SendInterval;
use crate::cache::BatchCache;
use crate::counters::AgentCounters;
use crate::identity::AgentIdentity;
use crate::jobs::SharedJobsView;
use crate::jobs::marks::Marks;
use crate::readings::RecentReadings;
use crate::registry::GroupRegistry;
use crate::status::AgentStatus;

#[derive(Debug, Clone)]
pub struct ApiContext {
    pub identity: Arc<AgentIdentity>,
    pub counters: Arc<AgentCounters>,
    pub registry: Arc<GroupRegistry>,
    pub cache: Arc<BatchCache>,
    pub readings: RecentReadings,
    pub jobs: Arc<SharedJobsView>,
    pub marks: Arc<Marks>,
    pub status: Arc<AgentStatus>,
    pub send_interval: Arc<SendInterval>,
}
