//! The kernels of backends that multiply in FP32, over any vectors: for panels of rows ([`panel`]), and for few rows
//! fused ([`fused`], with V1 in [`super::softmax_rows`]). BF16 becomes FP32 by a shift (even elements) and a mask (odd ones).

pub mod fused;
pub mod panel;

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

            with_features! {
                [$(#[$features])?] $token

                fn convert(simd, row: &Row<'_>, out: &mut [bf16]) {
                    $pack::convert_row(simd, row, out);
                }

                fn pack_q(simd, d_qk: usize, rows: &[&[bf16]], negate: bool, fused: bool, panel: &mut QPanel) {
                    if fused {
                        fp32::fused::pack_q(simd, d_qk, rows, negate, panel);
                    } else {
                        $pack::pack_q(simd, d_qk, rows, negate, panel);
                    }
                }

                fn softmax(simd, call: &Softmax<'_>, s: &STile, p: &mut L0a, state: &mut RowState) {
                    softmax::softmax(simd, softmax::StoreFp32, call, None, s, p, state, || ());
                }

                fn pv(simd, call: &Pv<'_>, p: &[&L0a], scratch: &mut L0b, o: &mut [ORow]) -> Skipped {
                    fp32::panel::pv::<_, $columns>(simd, call, p, scratch, o)
                }

                fn fused(
                    simd,
                    call: &Softmax<'_>,
                    block: &$crate::kernel::FusedBlock<'_>,
                    from: usize,
                    p: &mut L0a,
                    state: &mut RowState,
                    o: &mut [ORow],
                ) -> $crate::kernel::FusedEnd {
                    fp32::fused::fused(simd, call, block, from, p, state, o)
                }

                fn permute(simd, _fused: bool, o: &mut [ORow], to: Columns) {
                    fp32::panel::permute(simd, o, to);
                }

                fn epilogue(
                    simd,
                    call: &Epilogue<'_>,
                    earlier: Option<&[ORow]>,
                    o: &mut [ORow],
                    store: impl FnMut(usize, &ORow),
                ) {
                    simd::epilogue(simd, call, earlier, o, store);
                }

                fn rescale(simd, xs: &mut [f32], increment: Increment) {
                    simd::rescale(simd, xs, increment);
                }

                fn dot_loop(simd, iterations: u64) -> u64 {
                    fp32::panel::dot_loop::<_, $chains>(simd, iterations)
                }
            }

            fn qk(self, call: &Qk<'_>, q: &QPanel, scratch: &mut L0b, s: &mut STile) {
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
                let q = &q.0[..call.d_qk / 2];
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

            fn prob(self, p: &L0a, _precision: Precision, k: usize, r: usize) -> f32 {
                fp32::panel::prob(p, k, r)
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
                    s: &mut $crate::kernel::softmax_rows::Scores,
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
                    p: &$crate::kernel::softmax_rows::Scores,
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
