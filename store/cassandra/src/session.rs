//! The connection to Cassandra and the statements that are prepared on it.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;

use futures_util::StreamExt;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::client::{Compression, PoolSize};
use scylla::deserialize::row::DeserializeRow;
use scylla::serialize::row::SerializeRow;
use scylla::statement::SerialConsistency;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlValue, Row};
use wholegrain_store::StoreError;

use crate::config::CassandraConfig;
use crate::layout::CLASSES;

/// The first and the longest pause before a write is repeated.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The rows of one page of an answer.
const PAGE_ROWS: i32 = 500;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An error of the driver as an error of the store.
pub(crate) fn failed(doing: &'static str, error: impl Display) -> StoreError {
    StoreError::Remote { doing, reason: format!("Cassandra: {error}") }
}

/// A connection without a keyspace.
pub(crate) async fn connect(config: &CassandraConfig) -> Result<Session, StoreError> {
    let profile = ExecutionProfile::builder()
        .consistency(config.read_consistency.of_driver())
        .serial_consistency(Some(SerialConsistency::LocalSerial))
        .request_timeout(Some(config.timeout))
        .build();
    let one = std::num::NonZeroUsize::MIN;
    let mut builder = SessionBuilder::new()
        .known_nodes(&config.contact_points)
        .compression(Some(Compression::Lz4))
        .connection_timeout(CONNECT_TIMEOUT)
        .pool_size(PoolSize::PerHost(one))
        .fetch_full_schema_metadata(false)
        .tls_context(config.tls.clone())
        .default_execution_profile_handle(profile.into_handle());
    if let Some((user, password)) = &config.credentials {
        builder = builder.user(user, password);
    }
    if let Some(centre) = &config.data_centre {
        builder = builder.prefer_datacenter(centre.clone());
    }
    builder.build().await.map_err(|error| failed("connecting to Cassandra", error))
}

/// A session with a keyspace, and its prepared statements.
pub(crate) struct CassandraSession {
    pub session: Session,
    config: CassandraConfig,
    prepared: tokio::sync::RwLock<HashMap<String, PreparedStatement>>,
}

impl CassandraSession {
    /// Uses the keyspace of the configuration.
    pub fn new(session: Session, config: &CassandraConfig) -> Self {
        Self { session, config: config.clone(), prepared: tokio::sync::RwLock::default() }
    }

    /// A statement in which `$.` stands for the keyspace.
    async fn prepared(
        &self,
        text: &str,
        consistency: scylla::statement::Consistency,
    ) -> Result<PreparedStatement, StoreError> {
        if let Some(found) = self.prepared.read().await.get(text) {
            return Ok(found.clone());
        }
        let mut statement = self
            .session
            .prepare(text.replace("$.", &format!("{}.", self.config.keyspace)))
            .await
            .map_err(|error| failed("preparing a statement", error))?;
        statement.set_consistency(consistency);
        statement.set_is_idempotent(true);
        statement.set_page_size(PAGE_ROWS);
        self.prepared.write().await.insert(text.to_owned(), statement.clone());
        Ok(statement)
    }

    /// All rows of an answer.
    pub async fn rows<R>(
        &self,
        doing: &'static str,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<Vec<R>, StoreError>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata> + 'static,
    {
        let statement = self.prepared(text, self.config.read_consistency.of_driver()).await?;
        let pager = self.session.execute_iter(statement, values).await.map_err(|error| failed(doing, error))?;
        let mut stream = pager.rows_stream::<R>().map_err(|error| failed(doing, error))?;
        let mut rows = Vec::new();
        while let Some(row) = stream.next().await {
            rows.push(row.map_err(|error| failed(doing, error))?);
        }
        Ok(rows)
    }

    /// One write that can be repeated, tried once.
    pub async fn write_once(
        &self,
        doing: &'static str,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<(), StoreError> {
        let statement = self.prepared(text, self.config.write_consistency.of_driver()).await?;
        self.session.execute_unpaged(&statement, values).await.map(drop).map_err(|error| failed(doing, error))
    }

    /// Repeats a write until it has succeeded or `is_over` returns true. A write that timed out may have been applied: repeated, it writes the same.
    pub async fn write<V: SerializeRow>(
        &self,
        doing: &'static str,
        text: &str,
        values: V,
        is_over: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), StoreError> {
        let mut pause = PAUSE_MIN;
        loop {
            match self.write_once(doing, text, &values).await {
                Ok(()) => return Ok(()),
                Err(error) if is_over() => return Err(error),
                Err(error) => tracing::debug!(%error, "a write is repeated"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Repeats a batch of rows of one partition like [`CassandraSession::write`].
    pub async fn write_rows<V: SerializeRow>(
        &self,
        doing: &'static str,
        text: &str,
        rows: &[V],
        is_over: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), StoreError> {
        let mut pause = PAUSE_MIN;
        loop {
            let result = self.write_rows_once(doing, text, rows).await;
            match result {
                Ok(()) => return Ok(()),
                Err(error) if is_over() => return Err(error),
                Err(error) => tracing::debug!(%error, "a batch of rows is repeated"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn write_rows_once<V: SerializeRow>(
        &self,
        doing: &'static str,
        text: &str,
        rows: &[V],
    ) -> Result<(), StoreError> {
        let statement = self.prepared(text, self.config.write_consistency.of_driver()).await?;
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_consistency(self.config.write_consistency.of_driver());
        batch.set_is_idempotent(true);
        rows.iter().for_each(|_| batch.append_statement(statement.clone()));
        self.session.batch(&batch, rows).await.map(drop).map_err(|error| failed(doing, error))
    }

    /// A conditional statement. Returns whether it was applied, and the row that it found: the values of its columns by name.
    pub async fn conditional(
        &self,
        doing: &'static str,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<(bool, HashMap<String, CqlValue>), StoreError> {
        let mut statement = self.prepared(text, self.config.write_consistency.of_driver()).await?;
        // A conditional statement that timed out may have been applied: the driver must not repeat it.
        statement.set_is_idempotent(false);
        let result = self.session.execute_unpaged(&statement, values).await.map_err(|error| failed(doing, error))?;
        let rows = result.into_rows_result().map_err(|error| failed(doing, error))?;
        let names: Vec<String> = rows.column_specs().iter().map(|spec| spec.name().to_owned()).collect();
        let row = rows.first_row::<Row>().map_err(|error| failed(doing, error))?;
        let found: HashMap<String, CqlValue> =
            names.into_iter().zip(row.columns).filter_map(|(name, value)| Some((name, value?))).collect();
        let applied = found.get("[applied]").and_then(CqlValue::as_boolean).unwrap_or(false);
        Ok((applied, found))
    }
}

/// The statement that inserts a row of chunks of a class.
pub(crate) fn insert_chunk(class: usize) -> String {
    format!(
        "INSERT INTO $.chunks_{} (place, span, bucket, grp, band, t0, stamp, server, part, t1, n, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        CLASSES[class].0
    )
}
