//! Values that begin at another column of the keys than their first.

use amla::{Backend, Data, Problem, TensorRef, format};
use half::f16;

use crate::common::modes;
use crate::host::{Host, Keys, Layout, PLAIN, combined, decoded, paged, same};
use crate::sizes::{MHA, MLA};

/// Groups that go through fused kernels, and panels; keys in place, in one split and in several.
pub fn rope_first_rows(backend: Backend) {
    let ragged = Layout {
        keys: Keys::Ragged,
        spare: 2,
        padding: 3,
        split_q: true,
        ..PLAIN
    };
    for (i, (heads, dims)) in [
        ([1, 1], MLA),
        ([5, 1], MHA),
        ([8, 1], MLA),
        ([70, 1], MHA),
        ([6, 2], MHA),
    ]
    .into_iter()
    .enumerate()
    {
        let requests = [(1, 1), (2, 16), (1, 193), (1, 2060)];
        let host = Host::new(heads, dims, &requests).rope_first();
        // Each layout with every mode.
        for (j, layout) in [PLAIN, paged(16), ragged].into_iter().enumerate() {
            let options = modes(backend)[(i + j) % 4];
            let laid = host.laid(layout);
            let problem = laid.problem();
            // The same values as a tensor of their own.
            let Data::Bf16(data) = problem.kv.data else {
                unreachable!();
            };
            let apart = Problem {
                v_offset: 0,
                v: Some(TensorRef {
                    data: Data::Bf16(&data[host.v_offset..]),
                    ..problem.kv
                }),
                ..problem
            };
            let want = decoded(&apart, &options);
            let context = (heads, layout, options);
            same(&decoded(&problem, &options), &want, &context);
            same(&combined(&problem, &options), &want, &context);
        }
        host.causal(true).check(backend, paged(64));
    }
}

/// Values are columns of converted keys.
pub fn rope_first_rows_in_other_formats(backend: Backend) {
    for heads in [[3, 1], [20, 2]] {
        let [_, h_kv] = heads;
        let (d_qk, d_v) = MHA;
        let host = Host::new(heads, MHA, &[(2, 300)]).rope_first();
        let laid = host.laid(PLAIN);
        let problem = laid.problem();
        let Data::Bf16(data) = problem.kv.data else {
            unreachable!();
        };
        let halves: Vec<f16> = data.iter().map(|x| f16::from_f32(x.to_f32())).collect();
        let mut bytes = vec![0; data.len()];
        let rows = data.chunks(d_qk).zip(bytes.chunks_mut(d_qk));
        let scales: Vec<f32> = rows
            .map(|(row, bytes)| format::encode_int8(row, bytes).unwrap())
            .collect();
        let scale_strides = [300 * h_kv, h_kv, 1];
        let int8 = |from: usize| Data::Int8 {
            values: &bytes[from..],
            scales: &scales,
            strides: scale_strides,
        };
        for (data, values) in [
            (Data::F16(&halves), Data::F16(&halves[d_qk - d_v..])),
            (int8(0), int8(d_qk - d_v)),
        ] {
            let strides = problem.kv.strides;
            let first = Problem {
                kv: TensorRef { data, strides },
                ..problem
            };
            let apart = Problem {
                v_offset: 0,
                v: Some(TensorRef {
                    data: values,
                    strides,
                }),
                ..first
            };
            for options in modes(backend) {
                let want = decoded(&apart, &options);
                same(&decoded(&first, &options), &want, &(heads, options));
            }
        }
    }
}
