//! Errors of queries.

use wholegrain_store::StoreError;

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The query is invalid; the text says what to change.
    #[error("{0}")]
    Invalid(String),
    /// The store could not be read.
    #[error("reading the store: {0}")]
    Store(#[from] StoreError),
    /// The client has gone ([`Batches::stop_when`]).
    #[error("the query was cancelled")]
    Cancelled,
    /// Arrow rejected the columns: a bug of this crate.
    #[error("building a record batch: {0}")]
    Arrow(#[from] arrow_schema::ArrowError),
}
