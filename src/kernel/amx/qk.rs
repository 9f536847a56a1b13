//! C1 of a panel: `S^T = K Q^T`, keys in place.
#![allow(unsafe_code, reason = "tile instructions")]

use core::ops::Range;

use half::bf16;

use super::tiles::{self, Amx, DEPTH, SIDE, Tiles, strided};
use crate::kernel::call::Qk;
use crate::kernel::prefetch::TileRows;
use crate::tile::{BLOCK_KEYS, L0b, PANEL_ROWS, STile};

/// Keys of a visit, and rows of the tile of four that it is for 16 rows.
pub const VISIT: usize = 4 * SIDE;
/// Features of a visit to keys that aren't tiles in place, and are copied first, or aren't in whole lines.
const COPIED: usize = 192;
/// Copies of keys.
type Copies = [[bf16; COPIED]; VISIT];

/// [`Kernel::qk`]. The width is no constant, as that would gain nothing.
#[inline(never)]
pub fn qk(kernel: Amx, call: &Qk<'_>, q: &[[u32; PANEL_ROWS]], scratch: &mut L0b, s: &mut STile) {
    const { assert!(BLOCK_KEYS.is_multiple_of(VISIT)) };
    assert!(q.len().is_multiple_of(SIDE));
    let d_qk = 2 * q.len();
    const { assert!(COPIED.is_multiple_of(DEPTH) && size_of::<Copies>() <= size_of::<L0b>() / 2) };
    let memory: &mut [bf16] = bytemuck::cast_slice_mut(scratch[0].0.as_flattened_mut());
    let copies: &mut Copies = &mut memory.as_chunks_mut().0.as_chunks_mut().0[0];
    let tiles = Tiles::new(kernel);
    let row_tiles = call.rows.div_ceil(SIDE);
    let mut prefetch = TileRows::of(call.prefetch);
    for (keys, s) in call.keys.chunks(VISIT).zip(s.0.as_chunks_mut::<VISIT>().0) {
        let in_place = visit(keys, d_qk);
        // S stays in registers then. Otherwise keys come from L1d, for all rows.
        let features = match in_place {
            Some(k) if k.in_lines() => d_qk,
            _ => COPIED,
        };
        for (chunk, q) in q.chunks(features / 2).enumerate() {
            let columns = features * chunk..features * chunk + 2 * q.len();
            let k = match in_place {
                Some(k) => k.from(size_of::<bf16>() * columns.start),
                None => copy(keys, columns, copies),
            };
            let steps = q.len() / SIDE;
            let (q, s): (*const u32, *mut f32) = (q.as_ptr().cast(), s.as_mut_ptr().cast());
            let [low, high] = k.halves();
            for (half, k) in [low, high].into_iter().enumerate() {
                for row in (0..row_tiles / 2 * 2 * SIDE).step_by(2 * SIDE) {
                    let s = s.wrapping_add(half * 2 * SIDE * PANEL_ROWS + row);
                    let q = q.wrapping_add(SIDE * row);
                    let prefetch = prefetch.next(steps, q);
                    // SAFETY: K is 32 rows that each have these columns ([`visit`]), or copies of them; Q has two
                    // squares from that one on in each step, and S `2 * SIDE` rows from `row` on in each of its 32 keys.
                    unsafe { tiles.scores(k, q, steps, s, chunk > 0, prefetch) };
                }
            }
            if row_tiles % 2 == 1 {
                let row = SIDE * (row_tiles - 1);
                let (q, s) = (q.wrapping_add(SIDE * row), s.wrapping_add(row));
                let prefetch = prefetch.next(steps, q);
                // SAFETY: the same with 64 keys and `SIDE` rows.
                unsafe { tiles.scores_of_16(k, q, steps, s, chunk > 0, prefetch) };
            }
        }
    }
}

/// The tiles of a visit in place, if its keys are whole tiles with the same distance from each key to the next; the
/// first once more for those that it lacks. Each key has `columns` columns.
fn visit(keys: &[&[bf16]], d_qk: usize) -> Option<tiles::Keys<4>> {
    let (groups, rest) = keys.as_chunks::<SIDE>();
    let first = strided(groups.first()?, d_qk)?;
    let mut at = [first.at; 4];
    for (to, keys) in at.iter_mut().zip(groups) {
        let group = strided(keys, d_qk).filter(|group| group.stride == first.stride)?;
        *to = group.at;
    }
    rest.is_empty().then_some(tiles::Keys {
        at,
        stride: first.stride,
    })
}

/// Copies of some columns of a visit's keys. Stale ones are behind them: nobody reads the scores.
fn copy(keys: &[&[bf16]], columns: Range<usize>, copies: &mut Copies) -> tiles::Keys<4> {
    for (copy, key) in copies.iter_mut().zip(keys) {
        copy[..columns.len()].copy_from_slice(&key[columns.clone()]);
    }
    let first: *const u8 = copies.as_ptr().cast();
    tiles::Keys {
        at: core::array::from_fn(|i| first.wrapping_add(i * size_of::<[[bf16; COPIED]; SIDE]>())),
        stride: size_of::<[bf16; COPIED]>(),
    }
}
