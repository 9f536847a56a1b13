//! Which tiles and keys the items of a cycle use.

use core::array::from_fn;

use crate::schedule::{Cycle, SCORE_TILES};
use crate::tile::{P_TILES, PANELS};

/// A cycle, in two where C2's values may take the place of C1's keys in the K/V buffers.
pub fn apart(cycle: Cycle, in_place: bool) -> impl Iterator<Item = Cycle> {
    let (c1, v1) = (None, None);
    let parts = if in_place {
        [Some(cycle), None]
    } else {
        [
            Some(Cycle { c2: None, ..cycle }),
            Some(Cycle { c1, v1, ..cycle }),
        ]
    };
    parts.into_iter().flatten()
}

/// Which tiles and keys belong to an item.
pub struct Slots {
    pub panels: usize,
    pub preload: usize,
}

impl Slots {
    /// Two tiles of scores are alive in the preload pipeline, one otherwise.
    pub const fn s(&self, item: usize) -> usize {
        if self.preload == 0 {
            0
        } else {
            item % SCORE_TILES
        }
    }

    /// Each panel has its P until C2 has taken all; the preload pipeline fills one more meanwhile.
    pub const fn p(&self, item: usize) -> usize {
        let more = if self.preload == 0 {
            0
        } else {
            P_TILES - PANELS
        };
        item % (self.panels + more)
    }

    /// The tiles of all panels of the block that ends with an item.
    pub fn p_of_panels(&self, last: Option<usize>) -> [usize; PANELS] {
        from_fn(|panel| {
            last.map_or(0, |last| {
                self.p(last + 1 - self.panels + panel.min(self.panels - 1))
            })
        })
    }

    /// The block of an item.
    pub fn block(&self, item: Option<usize>) -> Option<usize> {
        item.map(|item| item / self.panels)
    }

    /// The block whose keys an item is the first to use.
    pub fn keys(&self, item: Option<usize>) -> Option<usize> {
        self.block(item.filter(|item| item.is_multiple_of(self.panels)))
    }
}
