//! Publishes of clients and remote brokers on their way to the store.
//!
//! - Input: publishes in their order, results of the store. Output: [`PublishEffect`]s, acknowledgements among them.
//! - Never: an acknowledgement before the data is durable; a reading of a sensor that the sender may not write.
//!
//! [`PublishPipeline`] decides and does no I/O; `executor.rs` carries out its effects. `reading_publishes.rs` recognizes
//! readings on sensor paths, `reading_run.rs` gathers them.

mod device_publishes;
mod effect;
mod executor;
pub mod pipeline;
mod reading_publishes;
pub mod reading_run;

pub use effect::{ClientTerms, CloseReason, IncomingPublish, PublishEffect, SchemaRegisterError};
pub(crate) use executor::{ForwardedPublish, Ingest, PermittedSchemas, PublishConnection, SenderRights, StoreEvent};
pub use pipeline::PublishPipeline;
pub(crate) use reading_publishes::{PublishDisposition, ReadingPublishes};
