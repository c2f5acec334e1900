//! A group about the polls of all controllers. Its reader also requests a discovery when groups have come or gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wholegrain_devices::PollCounts;
use wholegrain_model::SensorDef;
use wholegrain_sources::{GroupPlan, Reader, Reading, Row, Timing};

use crate::connection::RedfishConnection;
use crate::registry::GroupRegistry;

/// The group, with the version of the groups that the discovery has seen.
pub fn status_group(
    counts: Arc<PollCounts>,
    registry: Arc<GroupRegistry>,
    connections: Arc<[Arc<RedfishConnection>]>,
    version: u64,
) -> GroupPlan {
    let sensors = vec![
        SensorDef::gauge("redfish/devices", "{device}", "Controllers of the configuration."),
        SensorDef::gauge("redfish/failing", "{device}", "Controllers whose last poll brought no answer."),
        SensorDef::gauge("redfish/sessions", "{session}", "Sessions that are open."),
        SensorDef::counter("redfish/polls", "{poll}", "Polls that began."),
        SensorDef::counter("redfish/answers", "{poll}", "Polls that ended with an answer."),
        SensorDef::counter("redfish/timeouts", "{poll}", "Polls without an answer in time."),
        SensorDef::counter("redfish/requests", "{request}", "Requests of any kind."),
        SensorDef::counter("redfish/logins", "{request}", "Attempts to open a session."),
    ];
    let reader = StatusReader { counts, registry, connections, version };
    GroupPlan {
        name: "redfish".to_owned(),
        sensors,
        reader: Box::new(reader),
        timing: Timing::default(),
        blocking: true,
    }
}

struct StatusReader {
    counts: Arc<PollCounts>,
    registry: Arc<GroupRegistry>,
    connections: Arc<[Arc<RedfishConnection>]>,
    version: u64,
}

impl Reader for StatusReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let (mut sessions, mut requests, mut logins) = (0, 0, 0);
        for connection in self.connections.iter() {
            requests += connection.counts.requests.load(Ordering::Relaxed);
            logins += connection.counts.logins.load(Ordering::Relaxed);
            sessions += u64::from(connection.has_session());
        }
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let PollCounts { polls, answers, timeouts, failing, .. } = &*self.counts;
        let devices = self.connections.len() as u64;
        let values = [devices, load(failing), sessions, load(polls), load(answers), load(timeouts), requests, logins];
        for (index, value) in values.into_iter().enumerate() {
            row.set_int(index, i64::try_from(value).unwrap_or(i64::MAX));
        }
        let version = self.registry.version();
        let layout_changed = version != self.version;
        Reading { layout_changed, ..Reading::COMPLETE }
    }
}
