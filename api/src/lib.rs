//! Requests and responses of the HTTP API, as the server writes and clients read them.
//!
//! - Input and output: JSON, by serde. Times are RFC 3339 in UTC; lengths of time are texts such as `10s`.
//! - Never: I/O, or decisions about values. The server's `openapi.json` is generated from these types with the feature `schema`.

mod data;
mod energy;
mod jobs;
mod maintenance;
pub mod paths;
mod properties;
#[cfg(feature = "schema")]
mod schema;
mod sensors;
mod server;
mod statistics;
mod time;
mod virtuals;

pub use data::{
    AcknowledgeLosses, DeleteReadings, DeletedReadings, ImportState, ImportedPart, LossList, ReadingLoss,
    RetentionList, RetentionSource, SetRetention, StatedRetention, StoreCounts, StoreStatistics, SubtreeStatistics,
};
pub use energy::{JobEnergy, JobEnergyResult, JobEnergyTotal, JobNodeEnergy};
pub use jobs::{
    AccumulateWindows, AddJobRule, JobAllocation, JobDetails, JobMetricTotal, JobPage, JobRun, JobStep, JobStepTimes,
    JobSummary, ListedJob, NodeResponse, NodeResponses, RunState,
};
pub use maintenance::{
    CheckedFile, CheckedFileCount, CompactResult, MaintenanceKind, MaintenanceResult, MaintenanceStatus, RepairResult,
    RepairedFile, VerifyResult,
};
pub use properties::{
    PropertyChange, PropertyHistory, PropertyName, PropertySettings, PropertyValue, SensorProperties,
    SensorPropertiesPage, SetProperties, SetPropertiesOf, SetPropertiesResult, UnsetPropertiesResult,
};
pub use sensors::{NameList, NewestPage, NewestValue, QueryLine, Sensor, SensorPage};
pub use server::{ErrorResponse, HealthResponse, LogState, ReloadResult, ServerStatus};
pub use statistics::{JobStatistics, MetricOverNodes, NodeMetric, Spread};
pub use time::UtcTime;
pub use virtuals::{
    ChangeDefinitions, DefinitionHistory, DefinitionHistoryEntry, DefinitionsChanged, MissingOperands,
    VirtualDefinition, VirtualSensor, VirtualSensorList,
};
