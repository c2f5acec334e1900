//! The handles that [`JobGroups`](super::JobGroups) is constructed with.

use std::sync::Arc;

use crate::batch::SendInterval;
use crate::counters::AgentCounters;
use crate::identity::AgentIdentity;
use crate::jobs::marks::Marks;
use crate::jobs::pending_records::RecordsSlot;
use crate::jobs::view::SharedJobsView;
use crate::readings::RecentReadings;
use crate::registry::GroupRegistry;

#[derive(Clone)]
pub struct JobGroupsContext {
    pub identity: Arc<AgentIdentity>,
    pub registry: Arc<GroupRegistry>,
    pub counters: Arc<AgentCounters>,
    pub readings: RecentReadings,
    pub send_interval: Arc<SendInterval>,
    pub records: Arc<RecordsSlot>,
    pub view: Arc<SharedJobsView>,
    pub marks: Arc<Marks>,
}
