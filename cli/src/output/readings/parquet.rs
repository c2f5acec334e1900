//! Record batches into a Parquet file.

use std::io::{self, Write};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use crate::failure::Failure;

/// Rows of one row group, which is held in memory until it is written.
const ROW_GROUP_ROWS: usize = 1 << 20;

/// A Parquet file being written.
pub struct ParquetRows<W: Write + Send> {
    writer: ArrowWriter<W>,
    name: String,
}

impl<W: Write + Send> ParquetRows<W> {
    /// Begins the file; `name` is for messages.
    pub fn new(schema: SchemaRef, out: W, name: String) -> Result<Self, Failure> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_created_by(concat!("wholegrain ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer = ArrowWriter::try_new(out, schema, Some(properties)).map_err(|error| failed(&name, error))?;
        Ok(Self { writer, name })
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        self.writer.write(batch).map_err(|error| failed(&self.name, error))
    }

    /// Writes the footer and gives the destination back.
    pub fn finish(self) -> Result<W, Failure> {
        let name = self.name;
        self.writer.into_inner().map_err(|error| failed(&name, error))
    }
}

fn failed(name: &str, error: ParquetError) -> Failure {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => Failure::writing(name)(*error),
            Err(inner) => Failure::Failed(format!("cannot write {name}: {inner}")),
        },
        error => Failure::Failed(format!("cannot write {name}: {error}")),
    }
}
