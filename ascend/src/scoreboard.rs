//! The contents of every buffer while instructions run. The scoreboard detects use before arrival and
//! overwrite before use.
//!
//! It is independent of the flags. Flags decide when an instruction starts; the scoreboard checks that
//! its operands are present then, and that its target is free.

use crate::fault::Fault;
use crate::op::{Access, Buffer, Op, Slot, Tile, small};

/// Maximum number of buffers of a kind.
pub const MAX_SLOTS: usize = 16;

/// One buffer.
#[derive(Clone, Copy, Default)]
struct Contents {
    tile: Option<Tile>,
    /// The tile that an update in place replaces. Instructions that read row by row may still read it.
    previous: Option<Tile>,
    /// Parts of `tile` whose write has begun.
    begun: usize,
    /// Parts of `tile` whose write has ended.
    arrived: usize,
    /// All parts of `tile`.
    parts: usize,
    /// Outstanding reads of `tile`.
    uses: usize,
}

impl Contents {
    fn is_complete(&self) -> bool {
        self.arrived == self.parts
    }
}

/// All buffers.
pub(crate) struct Scoreboard {
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
                    parts,
                    uses,
                } => self.begin_write(op, slot, tile, parts, uses)?,
                Access::Update {
                    slot,
                    from,
                    to,
                    parts,
                } => self.begin_update(op, slot, from, to, parts)?,
            }
        }
        Ok(())
    }

    /// An instruction ends.
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

    /// After the last instruction: every buffer's contents are complete and read.
    pub fn check_drained(&self) -> Result<(), Fault> {
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
        let present = contents.tile == Some(tile) && contents.is_complete();
        if present || contents.previous == Some(tile) {
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
        parts: usize,
        uses: usize,
    ) -> Result<(), Fault> {
        let contents = self.at(slot);
        if contents.tile == Some(tile) && contents.begun < contents.parts {
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
            parts,
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
        parts: usize,
    ) -> Result<(), Fault> {
        let contents = self.at(slot);
        if contents.tile == Some(to) && contents.begun < contents.parts {
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
            parts,
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
            .map(|tile| (tile, small(contents.arrived), small(contents.parts))),
    }
}

/// All buffers, in the order in which the end of a run is checked.
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
