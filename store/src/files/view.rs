//! The blocks and segments that count at one moment.

use std::sync::Arc;

use crate::block::read::Block;
use crate::head::live::LiveSegment;

/// The blocks and segments that count at one moment.
#[derive(Debug, Clone)]
pub(crate) struct StoreView {
    pub blocks: Vec<Arc<Block>>,
    /// Tiers of blocks, also of some that retention has dropped.
    pub tiers: Vec<Arc<Block>>,
    /// Closed segments that are not sealed, oldest first.
    pub closed: Vec<Arc<LiveSegment>>,
    pub open: Arc<LiveSegment>,
    /// Blocks that were missing or cut short when the store was opened.
    pub absent: Vec<Arc<Block>>,
}
