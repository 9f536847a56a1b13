//! What lies in every buffer while instructions run: the judge of use before arrival and of overwrite
//! before use.
//!
//! It knows nothing of flags. Instructions start when their flags say so; the scoreboard says whether
//! they were right.

use super::fault::Fault;
use super::op::{Access, Buffer, Op, Slot, Tile, small};

/// Most buffers of a kind.
pub const MAX_SLOTS: usize = 16;

/// One buffer.
#[derive(Clone, Copy, Default)]
struct Contents {
    tile: Option<Tile>,
    /// What an update in place is turning into `tile`; still there for those who read row by row.
    previous: Option<Tile>,
    /// Pieces of `tile` whose writing began, ended, and all of them.
    begun: usize,
    arrived: usize,
    pieces: usize,
    /// Reads that haven't ended.
    uses: usize,
}

impl Contents {
    fn is_complete(&self) -> bool {
        self.arrived == self.pieces
    }
}

/// All buffers.
pub(super) struct Scoreboard {
    slots: [[Contents; MAX_SLOTS]; Buffer::COUNT],
}

impl Scoreboard {
    pub fn new() -> Self {
        Self {
            slots: [[Contents::default(); MAX_SLOTS]; Buffer::COUNT],
        }
    }

    fn at(&mut self, slot: Slot) -> &mut Contents {
        &mut self.slots[slot.buffer.index()][slot.index]
    }

    /// An instruction starts.
    pub fn begin(&mut self, op: &Op) -> Result<(), Fault> {
        for access in op.accesses.iter().flatten() {
            match *access {
                Access::Read { slot, tile } => self.check_read(op, slot, tile)?,
                Access::Write {
                    slot,
                    tile,
                    pieces,
                    uses,
                } => self.begin_write(op, slot, tile, pieces, uses)?,
                Access::Update {
                    slot,
                    from,
                    to,
                    pieces,
                } => self.begin_update(op, slot, from, to, pieces)?,
            }
        }
        Ok(())
    }

    /// An instruction is done.
    pub fn end(&mut self, op: &Op) {
        for access in op.accesses.iter().flatten() {
            match *access {
                Access::Read { slot, .. } => {
                    let contents = self.at(slot);
                    contents.uses = contents.uses.saturating_sub(1);
                }
                Access::Write { slot, .. } | Access::Update { slot, .. } => {
                    self.at(slot).arrived += 1;
                }
            }
        }
    }

    /// Nothing comes any more: nothing may be left to read.
    pub fn close(&self) -> Result<(), Fault> {
        for buffer in BUFFERS {
            for (index, contents) in self.slots[buffer.index()].iter().enumerate() {
                if let Some(tile) = contents.tile
                    && (contents.uses > 0 || !contents.is_complete())
                {
                    let slot = Slot { buffer, index };
                    return Err(Fault::NeverUsed { slot, tile });
                }
            }
        }
        Ok(())
    }

    fn check_read(&mut self, op: &Op, slot: Slot, tile: Tile) -> Result<(), Fault> {
        let contents = *self.at(slot);
        let there = contents.tile == Some(tile) && contents.is_complete();
        if there || contents.previous == Some(tile) {
            Ok(())
        } else {
            Err(too_early(op, slot, tile, &contents))
        }
    }

    fn begin_write(
        &mut self,
        op: &Op,
        slot: Slot,
        tile: Tile,
        pieces: usize,
        uses: usize,
    ) -> Result<(), Fault> {
        let contents = self.at(slot);
        if contents.tile == Some(tile) && contents.begun < contents.pieces {
            contents.begun += 1;
            return Ok(());
        }
        if let Some(held) = contents.tile
            && (contents.uses > 0 || !contents.is_complete())
        {
            return Err(Fault::OverwriteBeforeUse {
                pipe: op.pipe,
                work: op.work,
                slot,
                tile,
                held,
                uses: contents.uses,
            });
        }
        *contents = Contents {
            tile: Some(tile),
            previous: None,
            begun: 1,
            arrived: 0,
            pieces,
            uses,
        };
        Ok(())
    }

    fn begin_update(
        &mut self,
        op: &Op,
        slot: Slot,
        from: Option<Tile>,
        to: Tile,
        pieces: usize,
    ) -> Result<(), Fault> {
        let contents = self.at(slot);
        if contents.tile == Some(to) && contents.begun < contents.pieces {
            contents.begun += 1;
            return Ok(());
        }
        if let Some(from) = from
            && !(contents.tile == Some(from) && contents.is_complete())
        {
            return Err(too_early(op, slot, from, contents));
        }
        *contents = Contents {
            tile: Some(to),
            previous: from,
            begun: 1,
            arrived: 0,
            pieces,
            uses: 0,
        };
        Ok(())
    }
}

fn too_early(op: &Op, slot: Slot, wanted: Tile, contents: &Contents) -> Fault {
    Fault::UseBeforeArrival {
        pipe: op.pipe,
        work: op.work,
        slot,
        wanted,
        held: contents
            .tile
            .map(|tile| (tile, small(contents.arrived), small(contents.pieces))),
    }
}

/// Those that tiles may be left in.
const BUFFERS: [Buffer; Buffer::COUNT] = [
    Buffer::L1Qp,
    Buffer::L1Kv,
    Buffer::L0a,
    Buffer::L0b,
    Buffer::L0c,
    Buffer::Scores,
    Buffer::Probabilities,
    Buffer::Products,
    Buffer::Output,
    Buffer::UbIn(0),
    Buffer::UbOut(0),
    Buffer::UbIn(1),
    Buffer::UbOut(1),
];
