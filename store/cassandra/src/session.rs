//! The connection to Cassandra and the statements that are prepared on it.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::client::{Compression, PoolSize};
use scylla::deserialize::row::DeserializeRow;
use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind, DbError, MetadataError, NewSessionError,
};
use scylla::serialize::row::SerializeRow;
use scylla::statement::SerialConsistency;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlValue, Row};
use tokio::runtime::Handle;
use tokio::sync::watch;
use wholegrain_store::StoreError;

use crate::config::CassandraConfig;
use crate::layout::CLASSES;

/// The first and the longest pause before a write is repeated.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The rows of one page of an answer.
const PAGE_ROWS: i32 = 500;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTING: &str = "connecting to Cassandra";
/// How often a read is tried: a connection that breaks under it, and is made again within a second, is no reason for an error.
pub(crate) const READ_TRIES: u32 = 4;
/// A write that is repeated for this time is reported.
const REPORT_AFTER: Duration = Duration::from_secs(30);
/// At its end, a server waits at most this long for its last statement.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// An error of the driver as an error of the store.
pub(crate) fn failed(doing: &'static str, error: impl Display) -> StoreError {
    // The driver's messages have lines and indents.
    let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    StoreError::RemoteUnavailable { doing, reason: format!("Cassandra: {text}") }
}

/// An error of a new connection: [`StoreError::Remote`] if no later attempt can succeed with these settings.
fn not_connected(config: &CassandraConfig, error: &NewSessionError) -> StoreError {
    let refused = |reason: String| StoreError::Remote { doing: CONNECTING, reason };
    let last = match error {
        NewSessionError::MetadataError(MetadataError::ConnectionPoolError(ConnectionPoolError::Broken {
            last_connection_error,
        })) => last_connection_error,
        NewSessionError::FailedToResolveAnyHostname(names) => {
            return refused(format!("none of the names {} has an address; correct contact_points", names.join(" ")));
        }
        error => return failed(CONNECTING, error),
    };
    match last {
        ConnectionError::IoError(error) if error.kind() == std::io::ErrorKind::InvalidData => refused(format!(
            "TLS: {error}; ca must be the authority that signed Cassandra's certificate for its address"
        )),
        ConnectionError::ConnectionSetupRequestError(setup) => match &setup.error {
            ConnectionSetupRequestErrorKind::MissingAuthentication => {
                refused("Cassandra asks for a user; set user and password_file".to_owned())
            }
            // It also says so while it cannot read its table of users.
            ConnectionSetupRequestErrorKind::DbError(DbError::AuthenticationError, text)
                if !text.contains("Unable to perform") =>
            {
                let user = config.credentials.as_ref().map_or("", |(user, _)| user);
                refused(format!("Cassandra does not accept the password of the user {user:?}: {text}"))
            }
            _ => failed(CONNECTING, error),
        },
        _ => failed(CONNECTING, error),
    }
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
    builder.build().await.map_err(|error| not_connected(config, &error))
}

/// The pause after so many failed tries.
pub(crate) fn pause_after(tried: u32) -> Duration {
    (PAUSE_MIN * 4_u32.saturating_pow(tried.saturating_sub(1))).min(PAUSE_MAX)
}

/// Becomes true when the store closes; then nothing waits for Cassandra any more.
pub(crate) type Closing = Arc<watch::Sender<bool>>;

/// Waits on a thread that is not the runtime's, until this time is over or the store closes.
pub(crate) fn sleep_unless_closing(handle: &Handle, closing: &Closing, time: Duration) {
    let mut closing = closing.subscribe();
    let _ = handle.block_on(async { tokio::time::timeout(time, closing.wait_for(|is_closing| *is_closing)).await });
}

/// A write that is repeated.
struct Repetition {
    start: Instant,
    pause: Duration,
}

impl Default for Repetition {
    fn default() -> Self {
        Self { start: Instant::now(), pause: PAUSE_MIN }
    }
}

/// A session with a keyspace, and its prepared statements.
pub(crate) struct CassandraSession {
    pub session: Session,
    config: CassandraConfig,
    prepared: tokio::sync::RwLock<HashMap<String, PreparedStatement>>,
    closing: Closing,
    /// Whether a write is repeated for so long that it was reported.
    is_reported: AtomicBool,
}

impl CassandraSession {
    /// Uses the keyspace of the configuration.
    pub fn new(session: Session, config: &CassandraConfig, closing: Closing) -> Self {
        let prepared = tokio::sync::RwLock::default();
        Self { session, config: config.clone(), prepared, closing, is_reported: AtomicBool::new(false) }
    }

    pub fn deletion_timeout(&self) -> Duration {
        self.config.deletion_timeout
    }

    /// Does `work` unless the store closes meanwhile.
    async fn unless_closed<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let mut closing = self.closing.subscribe();
        let closed = async { drop(closing.wait_for(|is_closing| *is_closing).await) };
        tokio::select! {
            result = work => result,
            () = closed => Err(StoreError::Closed),
        }
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

    /// All rows of an answer. Tries a few times.
    pub async fn rows<R>(
        &self,
        doing: &'static str,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<Vec<R>, StoreError>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata> + 'static,
    {
        for tried in 1..READ_TRIES {
            match self.rows_once(doing, text, &values).await {
                Err(StoreError::RemoteUnavailable { .. }) => tokio::time::sleep(pause_after(tried)).await,
                result => return result,
            }
        }
        self.rows_once(doing, text, &values).await
    }

    async fn rows_once<R>(
        &self,
        doing: &'static str,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<Vec<R>, StoreError>
    where
        R: for<'frame, 'metadata> DeserializeRow<'frame, 'metadata> + 'static,
    {
        self.unless_closed(async {
            let statement = self.prepared(text, self.config.read_consistency.of_driver()).await?;
            let pager = self.session.execute_iter(statement, values).await.map_err(|error| failed(doing, error))?;
            let mut stream = pager.rows_stream::<R>().map_err(|error| failed(doing, error))?;
            let mut rows = Vec::new();
            while let Some(row) = stream.next().await {
                rows.push(row.map_err(|error| failed(doing, error))?);
            }
            Ok(rows)
        })
        .await
    }

    /// One write that can be repeated, tried once.
    pub async fn write_once(
        &self,
        doing: &'static str,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<(), StoreError> {
        self.unless_closed(async {
            let statement = self.prepared(text, self.config.write_consistency.of_driver()).await?;
            self.session.execute_unpaged(&statement, values).await.map(drop).map_err(|error| failed(doing, error))
        })
        .await
    }

    /// Repeats a write until it has succeeded or the store closes. A write that timed out may have been applied: repeated, it writes the same.
    pub async fn write<V: SerializeRow>(&self, doing: &'static str, text: &str, values: V) -> Result<(), StoreError> {
        let mut repetition = Repetition::default();
        while let Err(error) = self.write_once(doing, text, &values).await {
            self.rest(&mut repetition, error).await?;
        }
        self.is_reported.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Repeats a batch of rows of one partition like [`CassandraSession::write`].
    pub async fn write_rows<V: SerializeRow>(
        &self,
        doing: &'static str,
        text: &str,
        rows: &[V],
    ) -> Result<(), StoreError> {
        let mut repetition = Repetition::default();
        while let Err(error) = self.write_rows_once(doing, text, rows).await {
            self.rest(&mut repetition, error).await?;
        }
        self.is_reported.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Rests before a write that failed is repeated; returns the error if that is of no use.
    async fn rest(&self, repetition: &mut Repetition, error: StoreError) -> Result<(), StoreError> {
        if !matches!(error, StoreError::RemoteUnavailable { .. }) {
            return Err(error);
        }
        if repetition.start.elapsed() > REPORT_AFTER && !self.is_reported.swap(true, Ordering::Relaxed) {
            let seconds = REPORT_AFTER.as_secs();
            tracing::warn!(%error, "a write to Cassandra has failed for {seconds} s; it is repeated");
        }
        let rest = async {
            tokio::time::sleep(repetition.pause).await;
            Ok(())
        };
        self.unless_closed(rest).await?;
        repetition.pause = (repetition.pause * 2).min(PAUSE_MAX);
        Ok(())
    }

    /// A batch of rows of one partition that can be repeated, tried once.
    pub async fn write_rows_once<V: SerializeRow>(
        &self,
        doing: &'static str,
        text: &str,
        rows: &[V],
    ) -> Result<(), StoreError> {
        self.unless_closed(async {
            let statement = self.prepared(text, self.config.write_consistency.of_driver()).await?;
            let mut batch = Batch::new(BatchType::Unlogged);
            batch.set_consistency(self.config.write_consistency.of_driver());
            batch.set_is_idempotent(true);
            rows.iter().for_each(|_| batch.append_statement(statement.clone()));
            self.session.batch(&batch, rows).await.map(drop).map_err(|error| failed(doing, error))
        })
        .await
    }

    /// A conditional statement. Returns whether it was applied, and the row that it found: the values of its columns by name.
    pub async fn conditional(
        &self,
        doing: &'static str,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<(bool, HashMap<String, CqlValue>), StoreError> {
        self.unless_closed(self.conditional_once(doing, text, values)).await
    }

    /// A conditional statement of a store that closes. Waits a short time for it.
    pub async fn last_conditional(
        &self,
        doing: &'static str,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<(), StoreError> {
        let done = tokio::time::timeout(LAST_WAIT, self.conditional_once(doing, text, values)).await;
        done.unwrap_or_else(|_| Err(failed(doing, "no answer in time"))).map(drop)
    }

    async fn conditional_once(
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
