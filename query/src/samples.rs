//! Chunks as rows, one by one.

use wholegrain_model::Value;
use wholegrain_store::Chunk;

use crate::QueryError;

/// One sensor's samples, one by one; a gap is `None`.
pub(crate) struct Samples<I> {
    chunks: I,
    chunk: Option<Chunk>,
    at: usize,
}

impl<I> Samples<I> {
    pub(crate) fn new(chunks: I) -> Self {
        Self { chunks, chunk: None, at: 0 }
    }
}

impl<E: Into<QueryError>, I: Iterator<Item = Result<Chunk, E>>> Iterator for Samples<I> {
    type Item = Result<(i64, Option<Value>), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(chunk) = &self.chunk
                && let Some(time) = chunk.times.get(self.at)
            {
                let value = chunk.column.get(self.at);
                self.at += 1;
                return Some(Ok((*time, value)));
            }
            match self.chunks.next()? {
                Ok(chunk) => (self.chunk, self.at) = (Some(chunk), 0),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}
