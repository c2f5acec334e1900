//! A cache of footers and decoded pages, bounded in bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::read::{Block, DecodedPage, OpenBlock};
use crate::StoreError;

/// The most blocks whose file and footer are kept open.
const OPEN_BLOCKS_MAX: usize = 256;
/// Memory for their footers, approximately, in bytes.
const OPEN_BYTES_MAX: usize = 128 << 20;
/// Memory for decoded pages, in bytes.
const PAGE_CACHE_BYTES_MAX: usize = 32 << 20;

/// The recently used footers and decoded pages.
#[derive(Debug, Default)]
pub(crate) struct BlockCache {
    open: Mutex<VecDeque<Arc<OpenBlock>>>,
    pages: Mutex<PageCache>,
}

#[derive(Debug, Default)]
struct PageCache {
    held: HashMap<(u64, usize, usize), (Arc<DecodedPage>, u64)>,
    bytes: usize,
    tick: u64,
}

impl BlockCache {
    /// The block with its footer read.
    pub fn open(&self, block: &Block) -> Result<Arc<OpenBlock>, StoreError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|opened| opened.id == block.record.id) {
            let opened = open.remove(at);
            return match opened {
                Some(opened) => {
                    open.push_back(opened.clone());
                    Ok(opened)
                }
                None => OpenBlock::open(block).map(Arc::new),
            };
        }
        drop(open);
        let opened = Arc::new(OpenBlock::open(block)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push_back(opened.clone());
        let mut bytes: usize = open.iter().map(|opened| opened.memory()).sum();
        while open.len() > OPEN_BLOCKS_MAX || (bytes > OPEN_BYTES_MAX && open.len() > 1) {
            bytes -= open.pop_front().map_or(0, |opened| opened.memory());
        }
        Ok(opened)
    }

    /// Removes a block that does not exist any more.
    pub fn remove(&self, id: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|opened| opened.id != id);
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.held.retain(|(block, ..), _| *block != id);
        pages.bytes = pages.held.values().map(|(page, _)| page.gaps_len() * 8).sum();
    }

    /// A decoded page of a column.
    pub(super) fn page(&self, block: &OpenBlock, column: usize, at: usize) -> Result<Arc<DecodedPage>, StoreError> {
        let key = (block.id, column, at);
        {
            let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
            pages.tick += 1;
            let tick = pages.tick;
            if let Some((page, used)) = pages.held.get_mut(&key) {
                *used = tick;
                return Ok(page.clone());
            }
        }
        let page = Arc::new(block.decode(column, at)?);
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let tick = pages.tick;
        if pages.held.insert(key, (page.clone(), tick)).is_none() {
            pages.bytes += page.gaps_len() * 8;
        }
        while pages.bytes > PAGE_CACHE_BYTES_MAX && pages.held.len() > 1 {
            let Some(oldest) = pages.held.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key) else { break };
            if let Some((page, _)) = pages.held.remove(&oldest) {
                pages.bytes -= page.gaps_len() * 8;
            }
        }
        Ok(page)
    }
}
