//! C1.

use super::arithmetic::{add_pair, add_tiles};
use super::*;
use crate::tile::ascend;

#[test]
fn panels_have_the_same_bits_on_every_backend() {
    let operands = Operands::new([1, 3, 5]);
    for (rows, len) in shapes() {
        let run = operands.run(rows, len);
        for backend in backends() {
            let got = backend.with(run);
            for r in 0..rows {
                for k in 0..len {
                    let score = got.tiles.tiles.l0c[0].0[k][r];
                    let product = |i: usize| {
                        run.q[r * MAX_D_QK + i].to_f32() * run.keys[k * MAX_D_QK + i].to_f32()
                    };
                    if rows <= rows_summed_across_lanes(backend) {
                        // A sum of exact products in any order, 128 additions deep at most.
                        let products = (0..MAX_D_QK).map(product).map(f64::from);
                        let want: f64 = products.clone().sum();
                        let bound = 2_f64.powi(-17) * products.map(f64::abs).sum::<f64>();
                        let error = (f64::from(score) - want).abs();
                        assert!(error <= bound, "{backend:?} {r} {k}: {error:e}");
                    } else {
                        let want = sum(backend, product);
                        assert_eq!(score.to_bits(), want.to_bits(), "{backend:?} {r} {k}");
                    }
                }
            }
        }
    }
}

/// The exact products of all features, in a panel's order.
fn sum(backend: Backend, product: impl Fn(usize) -> f32) -> f32 {
    // Of a pair, the odd one first.
    let pairs = |start: usize, len: usize| {
        let pairs = (start..start + len).step_by(2);
        pairs.map(|pair| [product(pair + 1), product(pair)])
    };
    if backend.id() == BackendId::Amx {
        return add_tiles(0.0, pairs(0, MAX_D_QK));
    }
    let chunks = (0..MAX_D_QK).step_by(ascend::BASE_K).map(|start| {
        let add = |sum, products| add_pair(backend, sum, products);
        pairs(start, ascend::BASE_K).fold(0.0, add)
    });
    chunks.fold(0.0, |sum, chunk| sum + chunk)
}

/// C1 of keys anywhere in memory.
struct Scores<'a> {
    d_qk: usize,
    q: &'a [bf16],
    rows: usize,
    keys: &'a [&'a [bf16]],
    prefetch: &'a [&'a [bf16]],
}

impl Visitor for Scores<'_> {
    type Output = Vec<[f32; PANEL_ROWS]>;

    fn visit<K: Kernel>(self, kernel: K) -> Self::Output {
        let mut workspace = workspace();
        let Tiles { q, l0b, l0c, .. } = &mut workspace.tiles;
        let queries: Vec<_> = self.q.chunks(self.d_qk).take(self.rows).collect();
        let mut keys = Rows::NONE;
        keys.gather(self.keys.iter().copied());
        kernel.pack_q(&pack(self.d_qk, &queries, false), &mut q[..1]);
        let call = Qk {
            panel: 0,
            rows: self.rows,
            queries: Dtype::Bf16,
            d_qk: self.d_qk,
            keys: keys.as_slice(),
            dtype: Dtype::Bf16,
            prefetch: self.prefetch,
            s: 0,
        };
        kernel.qk(&call, &q[..1], l0b, &mut l0c[0]);
        l0c[0].0[..self.keys.len()].to_vec()
    }
}

/// Neither where keys are nor what is prefetched changes a bit.
fn keys_are_read_anywhere(d_qk: usize) {
    const LINE: usize = 32;
    let q = numbers(31, PANEL_ROWS * d_qk);
    let memory = numbers(32, 2 * BLOCK_KEYS * d_qk + 2 * LINE);
    let line = memory.as_ptr().align_offset(64);
    // The row that the n-th key has: contiguous, strided, backwards, and without an order.
    let orders: [&dyn Fn(usize) -> usize; 8] = [
        &|n| n,
        &|n| 2 * n,
        &|n| BLOCK_KEYS - 1 - n,
        &|_| 7,
        &|n| if n < 16 { n } else { 2 * n - 16 },
        &|n| if n % 32 < 16 { n } else { n ^ 15 },
        &|n| 37 * n % BLOCK_KEYS,
        &|n| if n == BLOCK_KEYS / 2 { 0 } else { n },
    ];
    for backend in backends() {
        for (rows, len) in [(5, 16), (48, 100), (64, 192)] {
            let (rows, len) = (rows.min(PANEL_ROWS), len.min(BLOCK_KEYS));
            for (start, row_of) in [0, 8]
                .iter()
                .flat_map(|s| orders.map(|order| (line + s, order)))
            {
                let key = |n| &memory[start + row_of(n) * d_qk..][..d_qk];
                let keys: Vec<_> = (0..len).map(key).collect();
                let copies: Vec<Vec<_>> = keys.iter().map(|key| key.to_vec()).collect();
                let copies: Vec<_> = copies.iter().map(|key| &key[..]).collect();
                let scores = |keys, prefetch| {
                    backend.with(Scores {
                        d_qk,
                        q: &q,
                        rows,
                        keys,
                        prefetch,
                    })
                };
                let (got, want) = (scores(&keys, &keys), scores(&copies, &[]));
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(got[..rows], want[..rows], "{backend:?} {rows} {len}");
                }
            }
        }
    }
}

#[test]
fn keys_may_be_anywhere() {
    keys_are_read_anywhere(MAX_D_QK);
    keys_are_read_anywhere(320);
}
