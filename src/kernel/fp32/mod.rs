//! The kernels of backends that multiply in FP32, over any vectors: for panels of rows ([`panel`]), and for few rows
//! fused ([`fused`], with V1 in [`softmax_rows`]). BF16 becomes FP32 by a shift (even elements) and a mask (odd ones).

pub mod fused;
pub mod panel;
pub mod softmax_rows;

/// Makes a capability token that has vectors ([`Simd`]) a backend: each kernel inlined
/// into a function that has the features, if there are any.
///
/// Register tiles of C1 are `keys x vectors`, each for panels of up to some number of rows; of
/// C2, rows x `vectors`. Groups of up to `prefetching` rows prefetch keys to come in C1. Of the fused kernel, for up to
/// `fused` rows, tiles are `rows: keys` of C1 and `rows: pairs of vectors` of C2, from one row on.
macro_rules! backend {
    (
        $token:ident $(, $features:meta)?;
        pack: $pack:ident;
        c1: $($rows:pat => $keys:literal x $vectors:literal),*;
        c2: $columns:literal;
        prefetching: $prefetching:literal;
        fused: $fused:literal;
        fused c1: $($qk_rows:literal: $qk_keys:literal),*;
        fused c2: $($pv_rows:literal: $pv_pairs:literal),*;
        chains: $chains:literal;
    ) => {
        #[allow(unsafe_code, reason = "calls of feature-gated functions")]
        #[allow(unused_unsafe, reason = "without features they are safe")]
        impl Kernel for $token {
            const FUSED_ROWS: usize = fp32::fused::rows($fused);

            fn prefetch_budget(self, rows: &prefetch::Shape) -> prefetch::Budget {
                // Panels read parts of all keys of a block before the next parts.
                if rows.group_rows <= $prefetching {
                    prefetch::Budget::c1($crate::tile::BLOCK_KEYS, $crate::tile::BLOCK_KEYS)
                } else {
                    prefetch::Budget::NONE
                }
            }

            fn convert(self, row: &Row<'_>, out: &mut [bf16]) {
                $(#[$features])?
                fn run(simd: $token, row: &Row<'_>, out: &mut [bf16]) {
                    $pack::convert_row(simd, row, out);
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, row, out) }
            }

            fn pack_q<const D_QK: usize>(
                self,
                rows: &[&[bf16]],
                negate: bool,
                fused: bool,
                panel: &mut QPanel,
            ) {
                $(#[$features])?
                fn run<const D_QK: usize>(
                    simd: $token,
                    rows: &[&[bf16]],
                    negate: bool,
                    fused: bool,
                    panel: &mut QPanel,
                ) {
                    if fused {
                        fp32::fused::pack_q(simd, D_QK, rows, negate, panel);
                    } else {
                        $pack::pack_q::<D_QK>(simd, rows, negate, panel);
                    }
                }
                // SAFETY: the token proves the features.
                unsafe { run::<D_QK>(self, rows, negate, fused, panel) }
            }

            fn qk<const D_QK: usize>(
                self,
                call: &Qk<'_>,
                q: &QPanel,
                scratch: &mut L0b,
                s: &mut STile,
            ) {
                $(#[$features])?
                fn run<const KEYS: usize, const VECTORS: usize, const STEP: usize>(
                    simd: $token,
                    call: &Qk<'_>,
                    q: &[[u32; $crate::tile::PANEL_ROWS]],
                    scratch: &mut L0b,
                    s: &mut STile,
                ) {
                    fp32::panel::qk::<_, KEYS, VECTORS, STEP>(simd, call, q, scratch, s);
                }
                let q = &q.0[..D_QK / 2];
                // SAFETY: the token proves the features.
                unsafe {
                    match call.rows {
                        $($rows => run::<
                            $keys,
                            $vectors,
                            { fp32::panel::step($vectors * <$token as simd::Simd>::LANES, $prefetching) },
                        >(self, call, q, scratch, s),)*
                    }
                }
            }

            fn softmax(self, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
                $(#[$features])?
                fn run(
                    simd: $token,
                    call: &Softmax<'_>,
                    s: &STile,
                    p: &mut L0a,
                    state: &mut RowState,
                ) {
                    softmax::softmax(simd, softmax::StoreFp32, call, None, s, p, state, || ());
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, call, s, p, state) }
            }

            fn prob(self, p: &L0a, _precision: Precision, k: usize, r: usize) -> f32 {
                fp32::panel::prob(p, k, r)
            }

            fn pv<const D_V: usize>(
                self,
                call: &Pv<'_>,
                p: &[&L0a],
                scratch: &mut L0b,
                o: &mut [ORow],
            ) -> Skipped {
                $(#[$features])?
                fn run(
                    simd: $token,
                    call: &Pv<'_>,
                    strips: usize,
                    p: &[&L0a],
                    scratch: &mut L0b,
                    o: &mut [ORow],
                ) -> Skipped {
                    fp32::panel::pv::<_, $columns>(simd, call, strips, p, scratch, o)
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, call, D_V / STRIP, p, scratch, o) }
            }

            fn fused<const D_QK: usize, const D_V: usize>(
                self,
                call: &Softmax<'_>,
                block: &$crate::kernel::FusedBlock<'_, D_QK, D_V>,
                from: usize,
                p: &mut L0a,
                state: &mut RowState,
                o: &mut [ORow],
            ) -> $crate::kernel::FusedEnd {
                $(#[$features])?
                fn run(
                    simd: $token,
                    call: &Softmax<'_>,
                    block: &fp32::fused::Block<'_>,
                    from: usize,
                    p: &mut L0a,
                    state: &mut RowState,
                    o: &mut [ORow],
                ) -> $crate::kernel::FusedEnd {
                    fp32::fused::fused(simd, call, block, from, p, state, o)
                }
                let block = fp32::fused::Block::of(block, call.rows);
                // SAFETY: the token proves the features.
                unsafe { run(self, call, &block, from, p, state, o) }
            }

            fn permute(self, _fused: bool, o: &mut [ORow], to: Columns) {
                $(#[$features])?
                fn run(simd: $token, o: &mut [ORow], to: Columns) {
                    fp32::panel::permute(simd, o, to);
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, o, to) }
            }

            fn epilogue(
                self,
                call: &Epilogue<'_>,
                earlier: Option<&[ORow]>,
                o: &mut [ORow],
                store: impl FnMut(usize, &ORow),
            ) {
                $(#[$features])?
                fn run(
                    simd: $token,
                    call: &Epilogue<'_>,
                    earlier: Option<&[ORow]>,
                    o: &mut [ORow],
                    store: impl FnMut(usize, &ORow),
                ) {
                    simd::epilogue(simd, call, earlier, o, store);
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, call, earlier, o, store) }
            }

            fn rescale(self, xs: &mut [f32], increment: Increment) {
                $(#[$features])?
                fn run(simd: $token, xs: &mut [f32], increment: Increment) {
                    simd::rescale(simd, xs, increment);
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, xs, increment) }
            }

            fn dot_loop(self, iterations: u64) -> u64 {
                $(#[$features])?
                fn run(simd: $token, iterations: u64) -> u64 {
                    fp32::panel::dot_loop::<_, $chains>(simd, iterations)
                }
                // SAFETY: the token proves the features.
                unsafe { run(self, iterations) }
            }
        }

        #[allow(unsafe_code, reason = "calls of feature-gated functions")]
        #[allow(unused_unsafe, reason = "without features they are safe")]
        impl fp32::fused::Tiles for $token {
            const QK: &'static [fp32::fused::Qk<Self>] = {
                $(#[$features])?
                fn run<const N: usize, const KEYS: usize>(
                    simd: $token,
                    step: &fp32::fused::Step<'_>,
                    row: usize,
                    s: &mut fp32::softmax_rows::Scores,
                ) {
                    fp32::fused::fused_qk::<_, N, KEYS>(simd, step, row, s);
                }
                &[$(run::<$qk_rows, $qk_keys>),*]
            };
            const PV: &'static [fp32::fused::Pv<Self>] = {
                $(#[$features])?
                fn run<const N: usize, const PAIRS: usize>(
                    simd: $token,
                    step: &fp32::fused::Step<'_>,
                    row: usize,
                    p: &fp32::softmax_rows::Scores,
                    o: &mut fp32::fused::Output<'_>,
                ) {
                    fp32::fused::fused_pv::<_, N, PAIRS>(simd, step, row, p, o);
                }
                &[$(run::<$pv_rows, $pv_pairs>),*]
            };
        }
    };
}
pub(super) use backend;
