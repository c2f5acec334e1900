//! The stream of readings in a response: record batches, then warnings and notes.

use std::io::Read;

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_schema::{ArrowError, SchemaRef};
use wholegrain_model::text::escaped;

use crate::connection::Response;
use crate::failure::Failure;
use crate::remarks::Remarks;

/// The most bytes of warnings and notes after the batches.
const TAIL_BYTES_MAX: u64 = 64 << 10;

/// An Arrow stream that is being received.
pub struct ReadingStream {
    batches: StreamReader<Box<dyn Read + Send>>,
    url: String,
}

impl ReadingStream {
    pub fn open(response: Response) -> Result<Self, Failure> {
        let url = response.url().to_owned();
        let body: Box<dyn Read + Send> = Box::new(response.into_reader());
        let batches = StreamReader::try_new(body, None).map_err(|error| broke_off(&url, error))?;
        Ok(Self { batches, url })
    }

    pub fn schema(&self) -> SchemaRef {
        self.batches.schema()
    }

    pub fn next(&mut self) -> Result<Option<RecordBatch>, Failure> {
        self.batches.next().transpose().map_err(|error| broke_off(&self.url, error))
    }

    /// The warnings and notes after the last batch.
    pub fn remarks(mut self) -> Remarks {
        tail(self.batches.get_mut())
    }
}

fn broke_off(url: &str, error: ArrowError) -> Failure {
    Failure::Unreachable(format!("the response of {url} broke off: {error}; try again"))
}

/// Reads the warnings and notes after an Arrow stream: one JSON object per line.
fn tail(body: impl Read) -> Remarks {
    #[derive(serde::Deserialize)]
    struct TrailingLine {
        warning: Option<String>,
        note: Option<String>,
    }
    let mut text = String::new();
    let _ = body.take(TAIL_BYTES_MAX).read_to_string(&mut text);
    let shown = |text: String| escaped(&text).into_owned();
    let mut remarks = Remarks::default();
    for line in text.lines().filter_map(|line| serde_json::from_str::<TrailingLine>(line).ok()) {
        remarks.warnings.extend(line.warning.map(shown));
        remarks.notes.extend(line.note.map(shown));
    }
    remarks
}
