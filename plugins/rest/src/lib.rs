//! Values of JSON, XML and CSV that devices show over HTTP.
//!
//! - In: `[plugins.rest]` with templates and lists of devices, their addresses, and the paths of values in the answers.
//! - Out: a group for each address of each device, with a sensor for each value and for each row and column of its tables.
//! - Never: a value that is not in the newest answer; an answer, a tree or a list of sensors without a bound; a secret in a message or to another host.

mod csv_table;
mod layout;
mod notes;
mod page;
mod settings;
mod source;
mod spec;
mod target;
mod time;
mod value;
mod xml;

pub use source::SOURCE;

wholegrain_plugin::export!(SOURCE);
