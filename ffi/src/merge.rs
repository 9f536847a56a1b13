//! Merging.

use amla::{Part, ProblemShape, merge};

use crate::call::output;
use crate::choice::Known;
use crate::fault::Fault;
use crate::memory::{Regions, read, slice};
use crate::report::report;
use crate::types::{self, ErrorDetail, Output, Status};

/// Merges results over different keys of the same queries into `total`, which holds one of them.
/// Keys are a shared prefix and those behind it, or caches sharded over devices or processes.
///
/// A part's weight is the exponential of its lse. Rows that saw no key have the total's
/// lse_empty and weigh nothing. With AMLA_LSE_EMPTY_MINUS_INFINITY, infinity is a number. Sums
/// are in FP64 and in the given order: the same parts in the same order give the same bits.
/// Results must be in FP32, and computed without a sink.
///
/// @param b Requests; 1 for ragged queries.
/// @param s_q Query positions of a request; for ragged queries all tokens.
/// @param h_q Query heads.
/// @param d_v Width of a row of O.
/// @param total Strides, format and memory, which holds one of the results.
/// @param parts The others, parts_len of them.
/// @param parts_len At most AMLA_MERGE_MAX.
/// @param detail Null, or where the reason goes if the call is refused.
/// @return AMLA_OK, or whatever is wrong with the arguments; then the total is untouched.
///
/// # Safety
/// Pointers are as documented with what they point to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amla_merge(
    b: usize,
    s_q: usize,
    h_q: usize,
    d_v: usize,
    total: *const Output,
    parts: *const types::Part,
    parts_len: usize,
    detail: *mut ErrorDetail,
) -> Status {
    let body = || {
        let mut outputs = Regions::new();
        // SAFETY: the caller's pointers are as documented: this function's contract.
        let total = unsafe { output(&mut outputs, total) }?;
        outputs.check()?;
        if parts_len > types::AMLA_MERGE_MAX {
            return Err(Fault::TooMany {
                argument: "parts_len",
                len: parts_len,
                max: types::AMLA_MERGE_MAX,
            });
        }
        if parts.is_null() && parts_len > 0 {
            return Err(Fault::Null { argument: "parts" });
        }
        let mut given: [Part<'_>; types::AMLA_MERGE_MAX] = [Part {
            o: &[],
            lse: &[],
            max_logits: None,
        }; _];
        for (i, part) in given.iter_mut().enumerate().take(parts_len) {
            // What is written against each part on its own: parts may be the same memory.
            let mut regions = outputs.clone();
            // SAFETY: one of `parts_len` structs, this function's contract.
            let read = unsafe { read(&mut regions, "parts", parts.wrapping_add(i)) }?;
            if read.reserved != 0 {
                return Err(Fault::Unknown {
                    argument: "parts.reserved",
                    value: read.reserved,
                    known: Known::Zero,
                });
            }
            let lens = [
                ("parts.o_len", read.o_len),
                ("parts.lse_len", read.lse_len),
                ("parts.max_logits_len", read.max_logits_len),
            ];
            let pairs = lens.into_iter().zip(total.lens());
            // The total lacks what nobody needs.
            for ((argument, len), expected) in pairs.filter_map(|(len, total)| Some((len, total?)))
            {
                if len != expected {
                    return Err(Fault::PartLength {
                        argument,
                        part: i,
                        len,
                        expected,
                    });
                }
            }
            let [_, _, max_logits] = total.lens();
            *part = Part {
                // SAFETY: the caller's pointers are as documented: this function's contract.
                o: unsafe { slice(&mut regions, "parts.o", read.o, read.o_len) }?,
                // SAFETY: the caller's pointers are as documented: this function's contract.
                lse: unsafe { slice(&mut regions, "parts.lse", read.lse, read.lse_len) }?,
                max_logits: match max_logits {
                    // SAFETY: the caller's pointers are as documented: this function's contract.
                    Some(len) => Some(unsafe {
                        slice(&mut regions, "parts.max_logits", read.max_logits, len)
                    }?),
                    None => None,
                },
            };
            regions.check()?;
        }
        let given = given.get(..parts_len).unwrap_or_default();
        let shape = ProblemShape {
            b,
            s_q,
            s_k: 0,
            h_q,
            h_kv: 1,
            d_qk: d_v,
            d_v,
        };
        // SAFETY: checked against every part; nobody else's by this function's contract.
        let total = unsafe { total.claim() };
        Ok(merge(&shape, total, given)?)
    };
    // SAFETY: the caller's pointers are as documented: this function's contract.
    unsafe { report(detail, body) }
}
