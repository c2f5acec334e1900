//! The write-ahead log: appends go to the journal, are synced, and then become visible; an opening replays it.

pub(crate) mod appender;
pub(crate) mod journal;
pub(crate) mod quarantine;
pub(crate) mod queue;
pub(crate) mod replay;
