//! Random hosts in random layouts, against Golden and bit for bit.

use amla::Backend;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::strategy::Union;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::common::modes;
use crate::host::{Host, Keys, Layout, PLAIN, combined, decoded, same};
use crate::largest::check_max_logits;
use crate::sizes::{MHA, MLA, SMALL, TINY};

/// A host and how it is laid out, in numbers.
#[derive(Clone, Debug)]
struct Recipe {
    requests: Vec<(usize, usize)>,
    heads: [usize; 2],
    dims: (usize, usize),
    separate: bool,
    causal: bool,
    window: Option<usize>,
    /// And its seed.
    tail: Option<(usize, u64)>,
    sink: bool,
    rope_first: bool,
    /// Times one over the root of `d_qk`.
    scale: f32,
    layout: Layout,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let len = prop_oneof![8 => 0..=260_usize, 1 => 2000..=2100_usize];
    let requests = proptest::collection::vec((0..=4_usize, len), 0..=3);
    let heads = (1..=3_usize, 1..=6_usize).prop_map(|(h_kv, group)| [h_kv * group, h_kv]);
    let small = prop_oneof![Just(TINY), Just(SMALL), Just(MHA)];
    let dims = prop_oneof![12 => small, 1 => Just((320, 256)), 1 => Just(MLA)];
    let window = proptest::option::of(prop_oneof![1..=8_usize, 1..=300_usize]);
    let tail = proptest::option::of((1..=150_usize, any::<u64>()));
    let any_keys = [Just(Keys::Contiguous).boxed(), Just(Keys::Ragged).boxed()];
    let paged = (1..=70_usize).prop_map(Keys::Paged).boxed();
    let keys = Union::new(any_keys.into_iter().chain([paged]));
    let problem = (requests, heads, dims, window, tail, -1.5_f32..1.5);
    let layout = (keys, 0..=3_usize, 0..=6_usize);
    (problem, layout, any::<[bool; 7]>()).prop_map(|(problem, (keys, spare, padding), flags)| {
        let (requests, heads, dims, window, tail, scale) = problem;
        let [
            separate,
            causal,
            sink,
            ragged_q,
            split_q,
            split_k,
            rope_first,
        ] = flags;
        let rope = dims.0 > dims.1;
        Recipe {
            requests,
            heads,
            dims,
            separate,
            causal: causal && tail.is_none(),
            window,
            tail,
            sink,
            rope_first: rope_first && !separate && !split_k,
            scale,
            layout: Layout {
                keys,
                spare,
                padding,
                ragged_q,
                split_q: split_q && rope,
                split_k: split_k && rope,
            },
        }
    })
}

impl Recipe {
    fn host(&self) -> Host {
        let mut host = Host::new(self.heads, self.dims, &self.requests).causal(self.causal);
        if self.separate {
            host = host.separate_v();
        }
        if let Some((tail, seed)) = self.tail {
            host = host.tree(tail, seed);
        }
        if self.sink {
            host = host.sink(|h| (h as f32 - 5.0) / 2.0);
        }
        if self.rope_first {
            host = host.rope_first();
        }
        host.window = self.window;
        host.scale *= self.scale;
        host
    }
}

pub fn any_host(backend: Backend) {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_251_121),
        ..Config::with_cases(60)
    });
    let check = |recipe: Recipe| {
        let host = recipe.host();
        host.check(backend, recipe.layout);
        let options = modes(backend)[recipe.requests.len()];
        let want = host.run(PLAIN, &options);
        let laid = host.laid(recipe.layout);
        same(&decoded(&laid.problem(), &options), &want, &options);
        same(&combined(&laid.problem(), &options), &want, &options);
        check_max_logits(&laid.problem(), &options);
        Ok(())
    };
    if let Err(error) = runner.run(&recipe(), check) {
        panic!("{error}");
    }
}
