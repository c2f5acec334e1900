//! The whole server in this process, spoken to over loopback as agents and clients do.

mod abandoned;
mod admission;
mod agents;
mod bounds;
mod control;
mod devices;
mod fairness;
mod harness;
mod http;
mod interop;
mod jobs;
mod lies;
mod log;
mod malformed;
mod mosquitto;
mod numbers;
mod owners;
mod properties;
mod protobuf;
mod reload;
mod remote;
mod remote_write;
mod security;
mod sessions;
mod slow;
mod virtuals;
