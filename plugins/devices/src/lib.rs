//! What the sources of devices on the network share: SNMP, BACnet, Modbus, Redfish, REST and others.
//!
//! - In: the table of a plug-in with templates and lists of devices; what devices answer.
//! - Out: the newest answer of each device and group, with its time, for readers that never wait.
//! - Never: a value that a device did not answer; a device that delays another one; a secret in a message.
//!
//! A source is built from four parts:
//!
//! 1. [`config::read`] reads the table: templates with inheritance, lists of hosts with ranges, credentials.
//! 2. An [`AnswerSlot`] for each group of each device takes its answers.
//! 3. A [`Poller`] with a [`DeviceProtocol`] for each device (non-blocking sockets, one thread), or a [`WorkerPool`] with a [`BlockingProtocol`] for
//!    each (a library that blocks, a few threads), polls the devices.
//! 4. [`DeviceGroups`] makes the source's groups from the slots.

mod answers;
pub mod config;
pub mod credentials;
mod groups;
pub mod hosts;
mod new_names;
mod notes;
pub mod parameters;
mod poller;
mod pool;
mod protocol;
mod resolver;
pub mod schedule;
mod status;

pub use answers::{AnswerReader, AnswerSlot, DeviceProblem, OLD_TIME, WallTime, system_time};
pub use config::{DeviceConfig, DevicesConfig, PollTiming};
pub use credentials::{Credentials, SecretText};
pub use groups::{DeviceGroup, DeviceGroups};
pub use hosts::DeviceHost;
pub use new_names::NewNames;
pub use notes::PollCounts;
pub use poller::{ANSWER_BYTES_MAX, POLL_NS_MAX, Poller};
pub use pool::{BlockingProtocol, PooledDevice, WORKER_STACK_BYTES, WORKERS_MAX, WorkerPool};
pub use protocol::{DeviceProtocol, DeviceTransport, PollTurn, PolledDevice, PolledGroup};
pub use resolver::{NameAnswer, NameThreads, Resolver};
pub use schedule::GroupTicks;
