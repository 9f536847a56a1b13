//! What else the functions of `amla.h` do: encoders, what the library says of itself, layouts,
//! formats and modes of calls, and faults that the other tests don't make.

use amla::{Backend, BackendId, SUPPORTED_DIMS, format};

use super::*;
use encode::{amla_encode_fp8, amla_encode_int8, amla_encode_model1};
use run::amla_plan_query;

/// A status, the argument that it names, and the change to a `T` that must give it.
type Wrong<T> = (Status, &'static str, fn(&mut T));

/// A row of 576 numbers, the bits of BF16.
fn row() -> Vec<u16> {
    let number = |i: usize| bf16::from_f32((i * 29 % 97) as f32 - 48.0);
    (0..576).map(|i| number(i).to_bits()).collect()
}

fn numbers(row: &[u16]) -> Vec<bf16> {
    row.iter().copied().map(bf16::from_bits).collect()
}

#[test]
fn encoders_give_rusts_bytes() {
    let (row, mut detail) = (row(), detail());
    let (mut got, mut want) = (vec![0; format::FP8_ROW], vec![0; format::FP8_ROW]);
    format::encode_fp8(&numbers(&row), &mut want).unwrap();
    // SAFETY: row and bytes are this test's, and as long as is said.
    let status = unsafe {
        amla_encode_fp8(
            row.as_ptr(),
            row.len(),
            got.as_mut_ptr(),
            got.len(),
            &mut detail,
        )
    };
    assert_eq!((status, got), (AMLA_OK, want));

    let row = &row[..512];
    let lens = [format::MODEL1_ROW, format::MODEL1_SCALES];
    let ([mut got, mut got_scales], [mut want, mut want_scales]) =
        (lens.map(|n| vec![0; n]), lens.map(|n| vec![0; n]));
    format::encode_model1(&numbers(row), &mut want, &mut want_scales).unwrap();
    // SAFETY: as above.
    let status = unsafe {
        amla_encode_model1(
            row.as_ptr(),
            row.len(),
            got.as_mut_ptr(),
            got.len(),
            got_scales.as_mut_ptr(),
            got_scales.len(),
            &mut detail,
        )
    };
    assert_eq!((status, got, got_scales), (AMLA_OK, want, want_scales));

    let row = &row[..5];
    let (mut got, mut scale, mut want) = (vec![0; 5], 0.0, vec![0; 5]);
    let want_scale = format::encode_int8(&numbers(row), &mut want).unwrap();
    // SAFETY: as above.
    let status = unsafe {
        amla_encode_int8(
            row.as_ptr(),
            row.len(),
            got.as_mut_ptr(),
            got.len(),
            &mut scale,
            &mut detail,
        )
    };
    assert_eq!((status, got, scale), (AMLA_OK, want, want_scale));
}

/// Arguments of an encoder: the row and its length, one buffer, another one.
#[derive(Clone, Copy)]
struct Encoding {
    row: *const u16,
    row_len: usize,
    bytes: *mut u8,
    bytes_len: usize,
    scales: *mut u8,
    scales_len: usize,
}

type Encoder = fn(Encoding, *mut ErrorDetail) -> Status;

fn fp8(e: Encoding, detail: *mut ErrorDetail) -> Status {
    // SAFETY: as long as is said, or must be refused.
    unsafe { amla_encode_fp8(e.row, e.row_len, e.bytes, e.bytes_len, detail) }
}

fn model1(e: Encoding, detail: *mut ErrorDetail) -> Status {
    let (scales, len) = (e.scales, e.scales_len);
    // SAFETY: as above.
    unsafe { amla_encode_model1(e.row, e.row_len, e.bytes, e.bytes_len, scales, len, detail) }
}

fn int8(e: Encoding, detail: *mut ErrorDetail) -> Status {
    let (values, scale) = (e.bytes.cast(), e.scales.cast());
    // SAFETY: as above.
    unsafe { amla_encode_int8(e.row, e.row_len, values, e.bytes_len, scale, detail) }
}

#[test]
fn encoders_deny() {
    let encoders: [(Encoder, usize, usize, usize, &str); 3] = [
        (fp8, 576, format::FP8_ROW, 0, ""),
        (
            model1,
            512,
            format::MODEL1_ROW,
            format::MODEL1_SCALES,
            "scales",
        ),
        (int8, 576, 576, 4, "scale"),
    ];
    let mut denied = 0;
    for (i, (encoder, row_len, bytes_len, scales_len, scales_name)) in
        encoders.into_iter().enumerate()
    {
        let bytes_name = if i == 2 { "values" } else { "bytes" };
        // Both outputs aligned as a scale must be.
        let words = |bytes: usize| vec![0xa5a5_a5a5_u32; bytes.div_ceil(4)];
        let mut memory = (row(), words(bytes_len), words(8));
        let good = Encoding {
            row: memory.0.as_ptr(),
            row_len,
            bytes: memory.1.as_mut_ptr().cast(),
            bytes_len,
            scales: memory.2.as_mut_ptr().cast(),
            scales_len,
        };
        let mut deny = |status: Status, argument: &str, change: &dyn Fn(&mut Encoding)| {
            let (mut wrong, mut detail) = (good, detail());
            change(&mut wrong);
            let got = encoder(wrong, &mut detail);
            let told = text(&detail.argument);
            assert_eq!((got, detail.status, told), (status, status, argument));
            denied += 1;
        };
        let (null_row, wrong_len) = (AMLA_ERROR_NULL_POINTER, AMLA_ERROR_WRONG_LENGTH);
        deny(null_row, "row", &|e| e.row = null());
        deny(AMLA_ERROR_MISALIGNED, "row", &|e| e.row = odd(e.row));
        deny(AMLA_ERROR_BAD_EXTENT, "row", &|e| e.row_len = usize::MAX);
        deny(null_row, bytes_name, &|e| e.bytes = std::ptr::null_mut());
        deny(AMLA_ERROR_BAD_EXTENT, bytes_name, &|e| {
            e.bytes_len = usize::MAX
        });
        deny(wrong_len, bytes_name, &|e| e.bytes_len -= 1);
        // INT8 rows have any length, and as many integers.
        let name = if i == 2 { bytes_name } else { "row" };
        deny(wrong_len, name, &|e| e.row_len -= 1);
        deny(AMLA_ERROR_ALIASED, bytes_name, &|e| {
            e.bytes = e.row.cast_mut().cast()
        });
        if !scales_name.is_empty() {
            deny(null_row, scales_name, &|e| e.scales = std::ptr::null_mut());
            deny(AMLA_ERROR_ALIASED, bytes_name, &|e| {
                e.scales = e.bytes.wrapping_add(4)
            });
        }
        if i == 1 {
            deny(wrong_len, "scales", &|e| e.scales_len -= 1);
        }
        if i == 2 {
            deny(AMLA_ERROR_MISALIGNED, "scale", &|e| {
                e.scales = e.scales.wrapping_add(1)
            });
        }
        let mut written = memory.1.iter().chain(&memory.2);
        assert!(written.all(|&word| word == 0xa5a5_a5a5));
    }
    assert_eq!(denied, 30);
}

/// A string of the library's; null is none.
fn string(chars: *const std::ffi::c_char) -> Option<&'static str> {
    // SAFETY: null, or a constant of the library.
    (!chars.is_null()).then(|| unsafe { CStr::from_ptr(chars) }.to_str().unwrap())
}

#[test]
fn the_library_says_what_it_is_and_can_do() {
    assert_eq!(info::amla_abi_version(), AMLA_ABI_VERSION);
    assert_eq!(
        string(info::amla_version_string()),
        Some(env!("CARGO_PKG_VERSION"))
    );
    // Which backends there are doesn't change any more then.
    let amx = match info::amla_permit_amx() {
        AMLA_OK => true,
        AMLA_ERROR_BACKEND_UNAVAILABLE => false,
        other => panic!("{other}"),
    };
    assert_eq!(amx, Backend::request(BackendId::Amx).is_ok());
    let name = Backend::detect().id().name();
    assert_eq!(string(info::amla_backend_name()), Some(name));
    let can_run = |id: &BackendId| Backend::request(*id).is_ok();
    let backends: Vec<_> = BackendId::ALL.into_iter().filter(can_run).collect();
    for i in 0..=backends.len() {
        let name = backends.get(i).map(|id| id.name());
        assert_eq!(string(info::amla_available_backend(i)), name);
    }
    assert_eq!(string(info::amla_available_backend(usize::MAX)), None);

    let mut set = CapabilitySet {
        struct_size: size_of::<CapabilitySet>() as u32,
        ..zeroed()
    };
    // SAFETY: the struct is this test's.
    assert_eq!(unsafe { info::amla_capabilities(&mut set) }, AMLA_OK);
    assert_eq!(set.struct_size as usize, size_of::<CapabilitySet>());
    assert_eq!(set.abi_version, AMLA_ABI_VERSION);
    assert_eq!(set.features.count_ones(), 7);
    let bits = |dtypes: &[u32]| dtypes.iter().map(|dtype| 1 << dtype).sum::<u32>();
    let halves = [AMLA_DTYPE_BF16, AMLA_DTYPE_F16];
    let stored = [AMLA_DTYPE_FP8, AMLA_DTYPE_MODEL1, AMLA_DTYPE_INT8];
    assert_eq!(set.input_dtypes, bits(&halves) | bits(&stored));
    assert_eq!(set.output_dtypes, bits(&halves) | bits(&[AMLA_DTYPE_F32]));
    assert_eq!(set.backends_len as usize, backends.len());
    let dims = &set.dims[..set.dims_len as usize];
    let widths = |&(d_qk, d_v): &(usize, usize)| [d_qk as u32, d_v as u32];
    let want: Vec<_> = SUPPORTED_DIMS.iter().map(widths).collect();
    assert_eq!(dims, want);

    let null = std::ptr::null_mut();
    // SAFETY: null and a misaligned struct must be refused.
    unsafe {
        assert_eq!(info::amla_capabilities(null), AMLA_ERROR_NULL_POINTER);
        let odd = odd(&raw const set).cast_mut();
        assert_eq!(info::amla_capabilities(odd), AMLA_ERROR_MISALIGNED);
    }
    set.struct_size += 8;
    // SAFETY: the struct is this test's.
    let status = unsafe { info::amla_capabilities(&mut set) };
    assert_eq!(
        (status, set.dims_len as usize),
        (AMLA_ERROR_STRUCT_SIZE, want.len())
    );
    assert_eq!(
        string(info::amla_status_string(Status::MAX)),
        string(info::amla_status_string(AMLA_ERROR_OTHER + 1)),
    );
}

/// Runs a changed call and gives the bits of o and lse.
fn run(world: fn() -> Box<World>, change: impl FnOnce(&mut World)) -> (Vec<u32>, Vec<u32>) {
    let mut w = world();
    change(&mut w);
    let mut w = w.planned();
    for (function, status, detail) in w.answers(Who::All) {
        assert_eq!(status, AMLA_OK, "{function}: {}", text(&detail.message));
    }
    results(&w)
}

/// The cache in pages of one key; queries and keys packed one request after the other.
#[test]
fn layouts_have_the_same_bits() {
    let whole = |w: &mut World| w.lens.fill(3);
    let want = run(World::apart, whole);
    assert_eq!(
        run(World::apart, |_| {}).0[..H_Q * D_V],
        want.0[..H_Q * D_V]
    );
    // Values and both parts of the keys have pages of their own, all of one key.
    let paged = run(World::apart, |w| {
        whole(w);
        w.table = (0..6).collect();
        (w.call.block_table, w.call.block_table_len) = (w.table.as_ptr(), 6);
        (w.call.max_blocks, w.call.page_size, w.call.pages) = (3, 1, 6);
        for tensor in [&mut w.kv, &mut w.k_rope, &mut w.v] {
            tensor.strides[0] = tensor.strides[1];
        }
    });
    assert_eq!(paged, want);
    let ragged = run(World::apart, |w| {
        whole(w);
        w.indptr = vec![0, 3, 6];
        (w.call.kv_indptr, w.call.kv_indptr_len) = (w.indptr.as_ptr(), 3);
        for tensor in [&mut w.kv, &mut w.k_rope, &mut w.v] {
            tensor.strides[0] = tensor.strides[1];
        }
    });
    assert_eq!(ragged, want);
    let ragged_q = run(World::apart, |w| {
        whole(w);
        w.indptr = vec![0, 1, 2];
        (w.call.q_indptr, w.call.q_indptr_len) = (w.indptr.as_ptr(), 3);
        w.output.lse_strides[2] = H_Q;
    });
    assert_eq!(ragged_q, want);
    // A tail of three keys of which every position sees the first and the last.
    let masked = run(World::apart, |w| {
        whole(w);
        (w.call.tail_mask, w.call.tail_mask_len) = (w.mask.as_ptr(), B);
        w.mask.fill(5);
        w.call.tail = 3;
    });
    assert_ne!(masked.0, want.0);
}

/// Every mode, output format and convention of lse that a call can ask for.
#[test]
fn modes_and_outputs() {
    let exact = run(World::apart, |_| {});
    let float = |bits: &u32| f32::from_bits(*bits);
    let close = |got: &(Vec<u32>, Vec<u32>)| {
        let pairs = got.0.iter().map(float).zip(exact.0.iter().map(float));
        pairs.fold(0.0_f32, |worst, (a, b)| worst.max((a - b).abs()))
    };
    let modes: [fn(&mut World); 3] = [
        |w| w.call.rescale = AMLA_RESCALE_COMPENSATED,
        |w| w.call.precision = AMLA_PRECISION_BF16X2,
        |w| w.call.backend = null(),
    ];
    for change in modes {
        assert!(close(&run(World::apart, change)) < 0.02);
    }
    let base2 = run(World::apart, |w| w.output.lse_base = AMLA_LSE_BASE_2);
    for (two, e) in base2.1.iter().map(float).zip(exact.1.iter().map(float)) {
        assert!((two * std::f32::consts::LN_2 - e).abs() < 1e-5);
    }
    let empty = |w: &mut World| {
        w.lens[0] = 0;
        (w.call.sink, w.call.sink_len) = (null(), 0);
    };
    let plus = run(World::apart, empty);
    let minus = run(World::apart, |w| {
        empty(w);
        w.output.lse_empty = AMLA_LSE_EMPTY_MINUS_INFINITY;
    });
    assert_eq!(plus.1.iter().map(float).next(), Some(f32::INFINITY));
    assert_eq!(minus.1.iter().map(float).next(), Some(f32::NEG_INFINITY));
    for dtype in [AMLA_DTYPE_BF16, AMLA_DTYPE_F16] {
        let halves = run(World::apart, |w| w.output.dtype = dtype);
        let elements: &[u16] = bytemuck::cast_slice(&halves.0);
        for (bits, want) in elements.iter().zip(exact.0.iter().map(float)) {
            let got = match dtype {
                AMLA_DTYPE_BF16 => bf16::from_bits(*bits).to_f32(),
                _ => half::f16::from_bits(*bits).to_f32(),
            };
            assert!((got - want).abs() <= want.abs() / 128.0, "{got} {want}");
        }
    }
    // A name that there is, at an address of its own.
    let name = c"portable".to_owned();
    let named = run(World::apart, |w| w.call.backend = name.as_ptr());
    assert_eq!(named, exact);
}

/// Faults in lists, in pages and in what belongs together.
#[test]
fn lists_are_denied() {
    let mut denials = Denials(0);
    let apart = World::apart as fn() -> Box<World>;
    let mut deny = |status, argument: &str, change: &dyn Fn(&mut World)| {
        denials.expect(apart, Who::All, status, argument, change);
    };
    fn paged(w: &mut World) {
        (w.call.block_table, w.call.block_table_len) = (w.table.as_ptr(), B);
        (w.call.max_blocks, w.call.page_size, w.call.pages) = (1, S_K, B);
    }
    let cases: [Wrong<World>; 15] = [
        (AMLA_ERROR_HEADS, "h_q", |w| {
            (w.call.h_q, w.call.h_kv) = (3, 2)
        }),
        (AMLA_ERROR_SEQLEN, "cache_seqlens", |w| w.lens[1] = 4),
        (AMLA_ERROR_SEQLEN, "cache_seqlens", |w| w.lens[0] = -1),
        (AMLA_ERROR_WRONG_LENGTH, "cache_seqlens", |w| {
            w.call.cache_seqlens_len = 1
        }),
        (AMLA_ERROR_PAGE, "block_table", |w| {
            (paged(w), w.table[0] = 2).1
        }),
        (AMLA_ERROR_PAGE, "block_table", |w| {
            (paged(w), w.table[1] = -1).1
        }),
        (AMLA_ERROR_NULL_POINTER, "block_table", |w| {
            (paged(w), w.call.block_table = null()).1
        }),
        (AMLA_ERROR_UNKNOWN_VALUE, "page_size", |w| {
            (paged(w), w.call.page_size = 0).1
        }),
        (AMLA_ERROR_INDPTR, "kv_indptr", |w| {
            w.indptr = vec![0, 4, 3];
            (w.call.kv_indptr, w.call.kv_indptr_len) = (w.indptr.as_ptr(), 3);
        }),
        (AMLA_ERROR_UNKNOWN_VALUE, "page_size", |w| w.call.pages = 3),
        (AMLA_ERROR_UNKNOWN_VALUE, "page_size", |w| {
            w.call.max_blocks = 1
        }),
        (AMLA_ERROR_INDPTR, "q_indptr", |w| {
            w.indptr = vec![0, 2, 1];
            (w.call.q_indptr, w.call.q_indptr_len) = (w.indptr.as_ptr(), 3);
        }),
        (AMLA_ERROR_CONFLICT, "block_table", |w| {
            paged(w);
            (w.call.kv_indptr, w.call.kv_indptr_len) = (w.indptr.as_ptr(), 3);
        }),
        (AMLA_ERROR_WRONG_LENGTH, "sink", |w| w.call.sink_len = 1),
        (AMLA_ERROR_NULL_POINTER, "sparse", |w| {
            w.call.extra = &raw const w.extra
        }),
    ];
    for (status, argument, change) in cases {
        deny(status, argument, &change);
    }
    let sparse = World::sparse as fn() -> Box<World>;
    let unsupported = AMLA_ERROR_UNSUPPORTED_DIMS;
    denials.expect(sparse, Who::All, unsupported, "d_qk", |w| w.call.d_v = 64);
    denials.expect(
        sparse,
        Who::All,
        AMLA_ERROR_TOPK_LENGTH,
        "topk_length",
        |w| w.counts[0] = TOPK as i32 + 1,
    );
    for name in [c"", c"avx1024"] {
        let status = AMLA_ERROR_BACKEND_UNAVAILABLE;
        denials.expect(apart, Who::All, status, "backend", |w| {
            w.call.backend = name.as_ptr()
        });
    }
}

/// Of a pair of ends that can't be, the detail has the one at fault.
#[test]
fn a_negative_start_is_told() {
    for (ends, value) in [([-1, 1, 2], -1), ([0, 2, 1], 2)] {
        let mut w = World::apart();
        w.indptr = ends.to_vec();
        (w.call.q_indptr, w.call.q_indptr_len) = (w.indptr.as_ptr(), 3);
        let (mut size, mut detail) = (0, detail());
        // SAFETY: all pointers are this test's.
        let got = unsafe { amla_plan_size(&w.call, &mut size, &mut detail) };
        assert_eq!((got, detail.value), (AMLA_ERROR_INDPTR, value));
    }
}

/// What makes bytes no plan.
type Spoil = fn(&mut [u8]);

/// Merging and asking a plan: what they refuse.
#[test]
fn merging_and_queries_are_denied() {
    let mut w = World::apart();
    let (o, lse) = (vec![0.0_f32; w.o.len()], vec![0.0_f32; w.lse.len()]);
    let good = part(&o, &lse);
    let cases: [Wrong<Part>; 6] = [
        (AMLA_ERROR_STRUCT_SIZE, "parts", |p| p.struct_size = 0),
        (AMLA_ERROR_UNKNOWN_VALUE, "parts.reserved", |p| {
            p.reserved = 1
        }),
        (AMLA_ERROR_NULL_POINTER, "parts.o", |p| p.o = null()),
        (AMLA_ERROR_MISALIGNED, "parts.lse", |p| p.lse = odd(p.lse)),
        (AMLA_ERROR_WRONG_LENGTH, "parts.o_len", |p| p.o_len -= 1),
        (AMLA_ERROR_WRONG_LENGTH, "parts.lse_len", |p| p.lse_len = 0),
    ];
    for (status, argument, change) in cases {
        let (mut wrong, mut detail) = (good, detail());
        change(&mut wrong);
        // SAFETY: total and part are this test's, or must be refused.
        let got = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, &wrong, 1, &mut detail) };
        assert_eq!((got, text(&detail.argument)), (status, argument));
    }
    let mut detail = detail();
    for (parts, len, status, argument) in [
        (null(), 1, AMLA_ERROR_NULL_POINTER, "parts"),
        (
            &raw const good,
            AMLA_MERGE_MAX + 1,
            AMLA_ERROR_OUT_OF_RANGE,
            "parts_len",
        ),
        (odd(&raw const good), 1, AMLA_ERROR_MISALIGNED, "parts"),
    ] {
        // SAFETY: as above.
        let got = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, parts, len, &mut detail) };
        assert_eq!((got, text(&detail.argument)), (status, argument));
    }
    let mut wrong = [good; 3];
    wrong[2].lse_len = 2;
    // SAFETY: as above.
    let got = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, wrong.as_ptr(), 3, &mut detail) };
    assert_eq!((got, detail.index), (AMLA_ERROR_WRONG_LENGTH, 2));
    let said = format!("parts.lse_len of part 2 is 2, not {}", w.lse.len());
    assert_eq!(text(&detail.message), said);
    let mut aliased = good;
    aliased.o = w.o.as_ptr();
    // SAFETY: as above.
    let got = unsafe { amla_merge(B, 1, H_Q, D_V, &w.output, &aliased, 1, &mut detail) };
    assert_eq!((got, text(&detail.argument)), (AMLA_ERROR_ALIASED, "o"));
    assert!(w.untouched());

    let mut info = PlanInfo {
        struct_size: size_of::<PlanInfo>() as u32,
        ..zeroed()
    };
    let size = w.plan.len();
    let spoil: [(Status, usize, Spoil); 3] = [
        (AMLA_ERROR_NOT_A_PLAN, size, |plan| plan[0] ^= 1),
        (AMLA_ERROR_NOT_A_PLAN, size, |plan| plan[8] ^= 1),
        (AMLA_ERROR_TOO_SHORT, size - 1, |_| {}),
    ];
    for (status, size, change) in spoil {
        let mut plan = w.plan.clone();
        change(&mut plan);
        // SAFETY: the plan and the struct are this test's.
        let got = unsafe { amla_plan_query(plan.as_ptr().cast(), size, &mut info, &mut detail) };
        assert_eq!((got, text(&detail.argument)), (status, "plan"));
        std::mem::swap(&mut plan, &mut w.plan);
        if size == plan.len() {
            assert_eq!(w.answers(Who::Tasks)[0].1, status);
        }
        w.plan = plan;
    }
    assert_eq!(info.tasks, 0);
    // Answers don't go where the question is.
    let plan = w.plan.as_mut_ptr();
    // SAFETY: as above, and must be refused.
    let got = unsafe { amla_plan_query(plan.cast(), size, plan.cast(), &mut detail) };
    assert_eq!(
        (got, text(&detail.argument)),
        (AMLA_ERROR_STRUCT_SIZE, "info")
    );
    for ask in [amla_plan_size, amla_workspace_size] {
        let pages = &raw mut w.call.pages;
        // SAFETY: as above.
        let got = unsafe { ask(&w.call, pages, &mut detail) };
        assert_eq!((got, text(&detail.argument)), (AMLA_ERROR_ALIASED, "size"));
        assert_eq!(w.call.pages, 0);
    }
}
