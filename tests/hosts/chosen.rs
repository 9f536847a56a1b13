//! Chosen keys in every layout: split, ragged and paged, of each KV head its own, in 32 bits and in 64.

use amla::{Backend, Data, IndexList, Indices, Pages, Plan, Problem, Sparse, TensorRef};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{modes, normal};
use crate::host::{Bits, Host, Keys, Laid, Layout, PLAIN, combined, decoded, golden, paged, same};
use crate::largest::check_max_logits;
use crate::sizes::{MHA, MLA, SMALL};

/// Keys of each query of a host, by request and KV head; some name none.
struct Chosen {
    /// `[tokens, h_kv, topk]`.
    keys: Vec<Option<usize>>,
    topk: usize,
    /// `[tokens]`.
    lengths: Vec<i32>,
}

/// Request and position of each token.
fn tokens(host: &Host) -> impl Iterator<Item = (usize, usize)> {
    let requests = host.requests.iter().enumerate();
    requests.flat_map(|(r, request)| (0..request.n).map(move |j| (r, j)))
}

impl Chosen {
    fn new(host: &Host, topk: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut keys, mut lengths) = (Vec::new(), Vec::new());
        for (r, _) in tokens(host) {
            for _ in 0..host.heads[1] {
                let mut all: Vec<usize> = (0..host.requests[r].len).collect();
                all.shuffle(&mut rng);
                let some = (0..topk).map(|i| all.get(i).copied());
                keys.extend(some.map(|key| key.filter(|_| rng.random_ratio(9, 10))));
            }
            lengths.push(i32::try_from(rng.random_range(0..=topk)).unwrap());
        }
        Self {
            keys,
            topk,
            lengths,
        }
    }

    /// Those of a token and KV head that count.
    fn of(&self, host: &Host, token: usize, head: usize) -> &[Option<usize>] {
        let start = (token * host.heads[1] + head) * self.topk;
        &self.keys[start..][..usize::try_from(self.lengths[token]).unwrap()]
    }

    /// As the layout's indices have it.
    fn indices(&self, host: &Host, laid: &Laid) -> Vec<i64> {
        let invalid = [-1, i64::MIN, 1 << 33, 1 << 40, i64::MAX, (1 << 32) - 1];
        let each = host.heads[1] * self.topk;
        let rows = tokens(host).zip(self.keys.chunks(each));
        let indices = rows.flat_map(|((r, _), keys)| {
            let index = move |(i, key): (usize, &Option<usize>)| {
                key.map_or(invalid[i % invalid.len()], |k| laid.index(r, k))
            };
            keys.iter().enumerate().map(index)
        });
        indices.collect()
    }

    /// Golden of each row, given nothing but its keys.
    fn golden(&self, host: &Host) -> (Vec<f64>, Vec<f64>) {
        let ([h_q, h_kv], d_v) = (host.heads, host.dims.1);
        let (mut o, mut lse) = (Vec::new(), Vec::new());
        for (token, (r, j)) in tokens(host).enumerate() {
            for head in 0..h_kv {
                let keys = self.of(host, token, head);
                let one = host.only(&[r]).keys(|_, k| keys.contains(&Some(k)));
                let one = one.head(head);
                let (all_o, all_lse) = golden(&one.laid(PLAIN).problem());
                let group = h_q / h_kv;
                o.extend(&all_o[j * group * d_v..][..group * d_v]);
                lse.extend(&all_lse[j * group..][..group]);
            }
        }
        (o, lse)
    }
}

/// The problem with these keys chosen.
fn sparse<'a>(
    problem: Problem<'a>,
    indices: IndexList<'a>,
    chosen: &'a Chosen,
    stride_h_kv: usize,
) -> Problem<'a> {
    let (topk, s) = (chosen.topk, problem.shape);
    let token = s.h_kv.max(1) * topk;
    Problem {
        sparse: Some(Sparse {
            indices: Indices {
                indices,
                strides: [s.s_q * token, token, stride_h_kv],
                topk,
                topk_length: Some(&chosen.lengths),
                topk_length_strides: [s.s_q, 1],
            },
            extra: None,
        }),
        ..problem
    }
}

fn narrow(indices: &[i64]) -> Vec<i32> {
    // None becomes a key by that.
    let narrow = |&index: &i64| i32::try_from(index).unwrap_or(-1);
    indices.iter().map(narrow).collect()
}

/// Bit for bit the same wherever keys are, and near Golden of the keys that each row was given.
pub fn chosen_keys_in_every_layout(backend: Backend) {
    for (heads, dims, requests, topk) in [
        ([6, 2], MHA, &[(2, 300), (2, 41), (2, 0)][..], 90),
        ([1, 1], MLA, &[(2, 60), (2, 400)][..], 193),
        ([3, 1], MHA, &[(1, 50), (3, 200), (0, 9)][..], 33),
        ([140, 2], MHA, &[(2, 230)][..], 200),
    ] {
        let plain = Host::new(heads, dims, requests);
        for host in [
            plain.clone(),
            plain.clone().separate_v(),
            plain.rope_first(),
        ] {
            let chosen = Chosen::new(&host, topk, topk as u64);
            let options = modes(backend);
            let mut wants: Vec<Bits> = Vec::new();
            for (n, (keys, split, ragged_q)) in [
                (Keys::Contiguous, false, false),
                (Keys::Contiguous, true, true),
                (Keys::Ragged, true, false),
                (Keys::Paged(16), true, true),
                (Keys::Paged(1), false, false),
            ]
            .into_iter()
            .enumerate()
            {
                let laid = host.laid(Layout {
                    keys,
                    spare: usize::from(split),
                    padding: if ragged_q { 3 } else { 0 },
                    ragged_q,
                    split_q: split,
                    split_k: split && host.v_offset == 0,
                });
                let indices = chosen.indices(&host, &laid);
                let narrow = narrow(&indices);
                let [wide, narrow] = [IndexList::I64(&indices), IndexList::I32(&narrow)]
                    .map(|list| sparse(laid.problem(), list, &chosen, topk));
                // Every mode at first, then one with each layout.
                let modes = if n == 0 { 0..4 } else { n - 1..n };
                for (i, options) in modes.clone().zip(&options[modes]) {
                    let got = decoded(&wide, options);
                    let context = (heads, keys, split, ragged_q, options);
                    let want = wants.get(i).unwrap_or(&got);
                    same(&got, want, &context);
                    same(&combined(&wide, options), want, &context);
                    same(&decoded(&narrow, options), want, &context);
                    if wants.len() == i {
                        wants.push(got);
                    }
                }
                check_max_logits(&wide, &options[0]);
            }
            let (o, lse) = chosen.golden(&host);
            // Weights are rounded by 2^-9, above the line and below it; values are some.
            for (got, want) in wants[0].0.iter().zip(&o) {
                let got = f64::from(f32::from_bits(*got));
                assert!((got - want).abs() <= 0.02, "{got} {want} {heads:?}");
            }
            for (got, want) in wants[0].1.iter().zip(&lse) {
                let got = f64::from(f32::from_bits(*got));
                let near = (got - want).abs() <= 4e-7 * want.abs().max(8.0);
                assert!(got == *want || near, "lse {got} {want} {heads:?}");
            }
        }
    }
}

/// Heads, positions and requests that share indices have them at a stride of 0.
pub fn shared_indices(backend: Backend) {
    let host = Host::new([6, 3], SMALL, &[(2, 100), (2, 100)]);
    let laid = host.laid(PLAIN);
    let own: Vec<i32> = (0..40).map(|i| (i * 13) % 101 - 1).collect();
    let all = own.repeat(2 * 2 * 3);
    let lengths = [40, 40, 40, 40];
    let problem = |list, strides, topk_length, topk_length_strides| Problem {
        sparse: Some(Sparse {
            indices: Indices {
                indices: IndexList::I32(list),
                strides,
                topk: 40,
                topk_length,
                topk_length_strides,
            },
            extra: None,
        }),
        ..laid.problem()
    };
    for options in modes(backend) {
        let want = problem(&all, [240, 120, 40], Some(&lengths[..]), [2, 1]);
        let plan = Plan::new(&want).unwrap();
        let want = decoded(&want, &options);
        for (list, strides, topk_length, topk_length_strides) in [
            (&all[..], [240, 120, 0], Some(&lengths[..2]), [1, 0]),
            (&own[..], [0; 3], Some(&lengths[..1]), [0; 2]),
            (&all[..120], [0, 0, 40], Some(&lengths[..2]), [0, 1]),
            (&own[..], [0; 3], Some(&lengths[..]), [2, 1]),
        ] {
            let shared = problem(list, strides, topk_length, topk_length_strides);
            same(&decoded(&shared, &options), &want, &strides);
            same(&combined(&shared, &options), &want, &strides);
            if topk_length_strides != [0, 1] {
                assert_eq!(Plan::new(&shared).unwrap(), plan);
            }
        }
    }
}

/// Rows of a paged cache beyond 2^31 and 2^32, of which only those chosen are ever touched: the system maps the
/// others to nothing.
#[cfg(target_pointer_width = "64")]
pub fn rows_beyond_32_bits(backend: Backend) {
    const ROWS: usize = (1 << 32) + 100;
    const TOPK: usize = 24;
    let (width, _) = SMALL;
    // Rows of one byte each overlap. All have one scale.
    let mut values = vec![0_i8; ROWS + width];
    let far = |k: usize| [0, 1 << 31, (1 << 31) + (1 << 30), 1 << 32][k % 4] + k / 4 * 16;
    let numbers = normal(5, 40.0, TOPK * width);
    let (mut near, mut indices) = (vec![0_i8; TOPK * width], vec![0_i64; TOPK]);
    for k in 0..TOPK {
        // Overlapping rows are what the last one left of them.
        for (i, x) in numbers[k * width..][..width].iter().enumerate() {
            values[far(k) + i] = x.to_f32() as i8;
        }
        indices[k] = i64::try_from(far(k)).unwrap();
    }
    for (k, row) in near.chunks_mut(width).enumerate() {
        row.copy_from_slice(&values[far(k)..][..width]);
    }
    let host = Host::new([3, 1], SMALL, &[(1, TOPK)]);
    let laid = host.laid(PLAIN);
    let int8 = |values, stride: usize| TensorRef {
        data: Data::Int8 {
            values,
            scales: &[0.01],
            strides: [0; 3],
        },
        strides: [stride, stride, 0],
    };
    let dense = Problem {
        kv: TensorRef {
            strides: [0, width, 0],
            ..int8(&near, width)
        },
        ..laid.problem()
    };
    // Beyond the last row, or where 32 bits of it are a row.
    let outside = [ROWS as i64, (1 << 33) + 3, -(1 << 32), i64::MAX];
    let with_outside: Vec<i64> = indices.iter().chain(&outside).copied().collect();
    for (page_size, list) in [(1, &indices), (4, &indices), (1, &with_outside)] {
        let pages = ROWS / page_size;
        let sparse = Problem {
            kv: TensorRef {
                strides: [page_size, 1, 0],
                ..int8(&values, 1)
            },
            pages: Some(Pages {
                block_table: &[],
                max_blocks: 0,
                stride: 0,
                page_size,
                pages,
            }),
            sparse: Some(Sparse {
                indices: Indices {
                    indices: IndexList::I64(list),
                    strides: [0; 3],
                    topk: list.len(),
                    topk_length: None,
                    topk_length_strides: [0; 2],
                },
                extra: None,
            }),
            ..laid.problem()
        };
        for options in modes(backend) {
            let (got, want) = (decoded(&sparse, &options), decoded(&dense, &options));
            let numbers =
                |bits: &[u32]| -> Vec<f32> { bits.iter().copied().map(f32::from_bits).collect() };
            if list.len() == TOPK {
                same(&got, &want, &(page_size, options));
            }
            // With keys that aren't seen the sums have another order.
            for (got, want) in numbers(&got.0).iter().zip(numbers(&want.0)) {
                assert!((got - want).abs() <= 0.02 * want.abs().max(0.1));
            }
        }
    }
}

/// All queries of a paged cache choose all keys of theirs: as without a choice.
pub fn all_keys_of_split_caches(backend: Backend) {
    let host = Host::new([5, 1], MHA, &[(1, 193), (1, 193)]).separate_v();
    for layout in [
        paged(16),
        Layout {
            split_q: true,
            split_k: true,
            ..paged(53)
        },
    ] {
        let laid = host.laid(layout);
        let all = (0..2).flat_map(|r| (0..193).map(move |k| (r, k)));
        let indices: Vec<i64> = all.map(|(r, k)| laid.index(r, k)).collect();
        let chosen = Chosen {
            keys: Vec::new(),
            topk: 193,
            lengths: vec![193; 2],
        };
        let problem = sparse(laid.problem(), IndexList::I64(&indices), &chosen, 0);
        for options in modes(backend) {
            let want = decoded(&laid.problem(), &options);
            same(&decoded(&problem, &options), &want, &(layout, options));
        }
    }
}
