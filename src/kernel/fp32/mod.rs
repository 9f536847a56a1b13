//! The kernels of backends that multiply in FP32, over any vectors: for panels of rows ([`panel`]), and for few rows
//! fused ([`fused`], with V1 in [`super::softmax_rows`]). They read rows of several dtypes in place ([`element`]).

#![allow(unsafe_code, reason = "loads by way of pointers to rows")]

pub mod element;
pub mod fused;
pub mod panel;

use self::element::{CHUNK, Element};
use super::prefetch::RowLines;
use super::simd::{Simd, lanes_mut};
use crate::format::{Row, convert};

/// An expression of the element of a dtype.
macro_rules! by_dtype {
    ($dtype:expr, $E:ident => $expression:expr) => {
        match $dtype {
            $crate::format::Dtype::Bf16 => {
                type $E = $crate::kernel::fp32::element::Bf16;
                $expression
            }
            $crate::format::Dtype::F16 => {
                type $E = $crate::kernel::fp32::element::F16;
                $expression
            }
            $crate::format::Dtype::F32 => {
                type $E = $crate::kernel::fp32::element::F32;
                $expression
            }
            $crate::format::Dtype::Q8_0 => {
                type $E = $crate::kernel::fp32::element::Q8;
                $expression
            }
            $crate::format::Dtype::Q4_0 => {
                type $E = $crate::kernel::fp32::element::Q4;
                $expression
            }
        }
    };
}
pub(super) use by_dtype;

/// The first numbers of a row: [`Kernel::convert_fp32`].
#[inline(always)]
pub fn convert_row<S: Simd>(simd: S, row: &Row<'_>, next: &Row<'_>, out: &mut [f32]) {
    RowLines::all(next, simd);
    match row.dtype().filter(|_| out.len().is_multiple_of(CHUNK)) {
        Some(dtype) => by_dtype!(dtype, E => {
            let words = row.words();
            assert!(words.len() >= dtype.words(out.len()));
            let vectors = lanes_mut::<S>(out).as_chunks_mut::<2>().0;
            for (i, to) in vectors.iter_mut().enumerate() {
                // SAFETY: the row has these numbers, as asserted.
                let [a, b] = unsafe { E::in_order(simd, words.as_ptr(), i * 2 * S::LANES) };
                simd.store(a, &mut to[0]);
                simd.store(b, &mut to[1]);
            }
        }),
        None => convert(row, out),
    }
}

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
            const MULTIPLIES_FP32: bool = true;

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

                fn convert(simd, row: &Row<'_>, next: &Row<'_>, out: &mut [bf16]) {
                    $pack::convert_row(simd, row, next, out);
                }

                fn convert_fp32(simd, row: &Row<'_>, next: &Row<'_>, out: &mut [f32]) {
                    fp32::convert_row(simd, row, next, out);
                }

                fn pack_q(simd, call: &$crate::kernel::PackQ<'_>, panel: &mut [QPanel]) {
                    match call.fused {
                        Some(keys) => fp32::fused::pack_q(simd, call, splits(keys), panel),
                        None => $pack::pack_q(simd, call, &mut panel[0]),
                    }
                }

                fn pack_row(simd, call: &$crate::kernel::PackRow<'_>, panel: &mut [QPanel]) {
                    match call.fused {
                        Some(keys) => fp32::fused::pack_row(simd, call, splits(keys), panel),
                        None => fp32::panel::pack_row(call, panel),
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
                    p: &mut L0a,
                    scratch: &mut L0b,
                    state: &mut RowState,
                    o: &mut [ORow],
                ) -> $crate::kernel::FusedEnd {
                    fp32::fused::fused(simd, call, block, p, scratch, state, o)
                }

                fn permute(simd, _fused: bool, values: Dtype, o: &mut [ORow], to: Columns) {
                    fp32::panel::permute(simd, values, o, to);
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

            fn qk(self, call: &Qk<'_>, q: &[QPanel], scratch: &mut L0b, s: &mut STile) {
                $(#[$features])?
                fn run<const KEYS: usize, const VECTORS: usize, const STEP: usize>(
                    simd: $token,
                    call: &Qk<'_>,
                    q: &[QPanel],
                    scratch: &mut L0b,
                    s: &mut STile,
                ) {
                    fp32::panel::qk::<_, KEYS, VECTORS, STEP>(simd, call, q, scratch, s);
                }
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
            fn qk(keys: Dtype) -> &'static [fp32::fused::Qk<Self>] {
                $(#[$features])?
                fn run<E: Element<$token>, const N: usize, const KEYS: usize>(
                    simd: $token,
                    step: &fp32::fused::Step<'_>,
                    row: usize,
                    s: &mut $crate::kernel::softmax_rows::Scores,
                ) {
                    fp32::fused::fused_qk::<_, E, N, KEYS>(simd, step, row, s);
                }
                struct Of<E>(E);
                impl<E: Element<$token>> Of<E> {
                    const TILES: &'static [fp32::fused::Qk<$token>] = &[$(run::<E, $qk_rows, $qk_keys>),*];
                }
                by_dtype!(keys, E => Of::<E>::TILES)
            }

            fn pv(values: Dtype) -> &'static [fp32::fused::Pv<Self>] {
                $(#[$features])?
                fn run<E: Element<$token>, const N: usize, const PAIRS: usize>(
                    simd: $token,
                    step: &fp32::fused::Step<'_>,
                    row: usize,
                    p: &$crate::kernel::softmax_rows::Scores,
                    o: &mut fp32::fused::Output<'_>,
                ) {
                    fp32::fused::fused_pv::<_, E, N, PAIRS>(simd, step, row, p, o);
                }
                struct Of<E>(E);
                impl<E: Element<$token>> Of<E> {
                    const TILES: &'static [fp32::fused::Pv<$token>] = &[$(run::<E, $pv_rows, $pv_pairs>),*];
                }
                by_dtype!(values, E => Of::<E>::TILES)
            }

            fn convert(rows: Dtype) -> Option<fp32::fused::Convert<Self>> {
                $(#[$features])?
                unsafe fn run<E: Element<$token>>(
                    simd: $token,
                    rows: &[*const bf16],
                    numbers: Range<usize>,
                    to: &mut [f32],
                ) {
                    // SAFETY: the caller's promise.
                    unsafe { fp32::fused::convert::<_, E>(simd, rows, numbers, to) }
                }
                match rows {
                    Dtype::Q8_0 => Some(run::<fp32::element::Q8>),
                    Dtype::Q4_0 => Some(run::<fp32::element::Q4>),
                    // Converted ones take longer to write and to read.
                    _ => None,
                }
            }
        }

        #[allow(unsafe_code, reason = "calls of feature-gated functions")]
        #[allow(unused_unsafe, reason = "without features they are safe")]
        impl fp32::panel::Conversions for $token {
            fn keys(dtype: Dtype) -> fp32::panel::ConvertKeys<Self> {
                $(#[$features])?
                unsafe fn run<E: Element<$token>>(
                    simd: $token,
                    keys: &[*const bf16],
                    features: Range<usize>,
                    to: &mut [[f32; fp32::panel::DEPTH]],
                ) {
                    // SAFETY: the caller's promise.
                    unsafe { fp32::panel::convert_keys::<_, E>(simd, keys, features, to) }
                }
                by_dtype!(dtype, E => run::<E>)
            }

            fn values(dtype: Dtype) -> fp32::panel::ConvertValues<Self> {
                $(#[$features])?
                unsafe fn run<E: Element<$token>>(
                    simd: $token,
                    values: &fp32::panel::Values<'_>,
                    to: &mut fp32::panel::Strip,
                ) -> bool {
                    fp32::panel::convert_values::<_, E>(simd, values, to)
                }
                by_dtype!(dtype, E => run::<E>)
            }
        }
    };
}
pub(super) use backend;
