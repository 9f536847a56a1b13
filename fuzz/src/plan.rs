//! Plans: tasks that cover each key once, however they are shared out; anything else is refused.

use std::ops::Range;

use amla::{
    Argument, Elements, Error, Lse, Options, Output, Plan, Problem, ProblemShape, SharedOutput,
    Split, TailMask, combine, decode, run_tasks,
};
use half::bf16;

use crate::common::used_workspace;
use crate::draw::Draw;
use crate::hosts::{PATTERN, output, rows, untouched};

pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    if draw.once_in(2) {
        any_shape(&mut draw);
    } else {
        covered(&mut draw);
    }
}

/// Shapes alone, or also what lengths there are.
pub fn kind(data: &[u8]) -> Option<String> {
    let mut draw = Draw::new(data);
    if draw.once_in(2) {
        return Some("any-shape".to_owned());
    }
    let sizes = Sizes::draw(&mut draw);
    let mut words = vec!["covered"];
    let mut add = |there: bool, word| words.extend(there.then_some(word));
    add(sizes.q_indptr.is_some(), "queries");
    add(sizes.kv_indptr.is_some(), "ragged");
    add(sizes.lens.is_some(), "lengths");
    add(sizes.causal, "causal");
    add(sizes.window.is_some(), "window");
    add(sizes.tail.is_some(), "tree");
    Some(words.join("-"))
}

/// Sizes and lists of any kind: a plan or an error, and plans in numbers and back.
fn any_shape(draw: &mut Draw) {
    let mut size = || match draw.u8() {
        0..=200 => draw.among(0..=300),
        201..=230 => draw.one_of(&[
            i32::MAX as usize,
            i32::MAX as usize + 1,
            usize::MAX,
            1 << 32,
        ]),
        _ => draw.u64() as usize,
    };
    let shape = ProblemShape {
        b: size(),
        s_q: size(),
        s_k: size(),
        h_q: size(),
        h_kv: size() % 4,
        d_qk: 64,
        d_v: 64,
    };
    let list = |draw: &mut Draw| -> Option<Vec<i32>> {
        let len = shape.b.saturating_add(draw.among(0..=1)).min(300);
        let list = |draw: &mut Draw| (0..len).map(|_| draw.u32().cast_signed() >> 23).collect();
        draw.once_in(4).then(|| list(draw))
    };
    let (q_indptr, kv_indptr, lens) = (list(draw), list(draw), list(draw));
    let row = [bf16::ZERO; 64];
    let mut problem = Problem {
        q_indptr: q_indptr.as_deref(),
        kv_indptr: kv_indptr.as_deref(),
        cache_seqlens: lens.as_deref(),
        causal: draw.once_in(2),
        window: draw.once_in(4).then(|| draw.u64() as usize),
        ..Problem::dense(shape, &row, &row, 1.0)
    };
    (problem.q.strides, problem.kv.strides) = ([0; 3], [0; 3]);
    let words = [(); Plan::WORDS].map(|()| draw.u64());
    if let Ok(plan) = Plan::for_threads(&problem, draw.one_of(&THREADS)) {
        assert!(plan.partial_len() > 0 && plan.partial_tasks() <= plan.tasks());
        let bound = Plan::bound(&problem.shape, problem.split).unwrap();
        assert!(plan.partials_len() <= bound);
        assert_eq!(Plan::from_words(plan.to_words()), Some(plan));
        let mut other = plan.to_words();
        other[draw.among(0..=Plan::WORDS - 1)] ^= 1 << draw.among(0..=63);
        refused(&problem, other);
    }
    refused(&problem, words);
}

/// What isn't the problem's plan computes nothing.
fn refused(problem: &Problem, words: [u64; Plan::WORDS]) {
    let Some(plan) = Plan::from_words(words) else {
        return;
    };
    if THREADS
        .map(|threads| Plan::for_threads(problem, threads))
        .contains(&Ok(plan))
    {
        return;
    }
    let mut partials = [PATTERN; 64];
    let options = Options::default();
    let (mut o, mut lse) = ([PATTERN; 64], [PATTERN; 1]);
    let written = Output {
        o: Elements::F32(&mut o),
        o_strides: [64; 3],
        lse: Some(&mut lse),
        lse_strides: [1; 3],
        max_logits: None,
        lse_format: Lse::default(),
    };
    let shared = &SharedOutput::from(written);
    let ran = used_workspace(|workspace| {
        let memory = &mut partials;
        run_tasks(problem, &options, &plan, 0..1, workspace, memory, shared)
    });
    assert!(ran.is_err());
    assert!(combine(problem, &plan, 0..1, &partials, shared).is_err());
    assert!(untouched(&partials) && untouched(&o) && untouched(&lse));
}

/// Tasks and rows that a plan doesn't have, or memory too short by a number, compute nothing.
fn refused_parts(draw: &mut Draw, problem: &Problem, plan: &Plan) {
    let (short_partials, short_o) = (draw.once_in(4), draw.once_in(4));
    let mut part = |of: usize| {
        let start = draw.among(0..=of);
        match draw.among(0..=2) {
            // These would do.
            0 => 0..of,
            1 => start + 1..start,
            _ => start..draw.one_of(&[of + 1, usize::MAX]),
        }
    };
    let (tasks, merged) = (part(plan.tasks()), part(plan.merges()));
    let rows = rows(problem);
    let short_partials = short_partials && plan.partials_len() > 0;
    let short_o = short_o && rows > 0;
    let mut partials = vec![PATTERN; plan.partials_len() - usize::from(short_partials)];
    let mut o = vec![PATTERN; rows * problem.shape.d_v - usize::from(short_o)];
    let mut lse = vec![PATTERN; rows];
    let options = Options::default();
    let written = &output(problem, Elements::F32(&mut o), &mut lse).into();
    // The first of its faults, in the order in which they are looked for.
    let outside = |range: &Range<usize>, of: usize| range.start > range.end || range.end > of;
    let o_fault = short_o.then_some(Argument::O);
    let memory_fault = short_partials.then_some(Argument::Partials);
    let range_fault = |range, of, argument| outside(range, of).then_some(argument);
    let run_fault = range_fault(&tasks, plan.tasks(), Argument::Task);
    let run_fault = o_fault.or(run_fault).or(memory_fault);
    let merge_fault = range_fault(&merged, plan.merges(), Argument::Merges);
    let merge_fault = o_fault.or(memory_fault).or(merge_fault);
    if run_fault.is_some() {
        let ran = used_workspace(|workspace| {
            let memory = &mut partials;
            run_tasks(problem, &options, plan, tasks, workspace, memory, written)
        });
        assert_eq!(ran.err().and_then(argument), run_fault);
    }
    if merge_fault.is_some() {
        let merged = combine(problem, plan, merged, &partials, written);
        assert_eq!(merged.err().and_then(argument), merge_fault);
    }
    assert!(untouched(&partials) && untouched(&o) && untouched(&lse));
}

const fn argument(error: Error) -> Option<Argument> {
    match error {
        Error::OutOfRange { argument, .. } | Error::TooShort { argument, .. } => Some(argument),
        _ => None,
    }
}

/// Requests of any lengths over a cache whose keys are all alike to the queries.
struct Sizes {
    heads: [usize; 2],
    s_q: usize,
    /// Of each request.
    queries: Vec<usize>,
    keys: Vec<usize>,
    q_indptr: Option<Vec<i32>>,
    kv_indptr: Option<Vec<i32>>,
    lens: Option<Vec<i32>>,
    causal: bool,
    window: Option<usize>,
    tail: Option<(usize, u64)>,
    split: Split,
}

impl Sizes {
    fn draw(draw: &mut Draw) -> Self {
        let b = draw.among(1..=4);
        let h_kv = draw.one_of(&[1, 1, 2]);
        let group = draw.one_of(&[1, 2, 3, 16, 63, 65, 130, 257]);
        let (ragged_q, keys_are) = (draw.once_in(3), draw.among(0..=2));
        let s_q = if group > 60 { 2 } else { draw.among(1..=4) };
        let queries = (0..b).map(|_| match ragged_q {
            true => draw.among(0..=s_q),
            false => s_q,
        });
        let queries: Vec<usize> = queries.collect();
        // What there is to compute bounds an execution.
        let most = (1 << 17) / (b * h_kv * group * s_q);
        let mut len = || {
            match draw.u8() {
                0..=99 => draw.among(0..=260),
                100..=199 => {
                    draw.one_of(&[0, 1, 191, 192, 193, 2047, 2048, 2049, 4096, 8191, 8192])
                }
                200..=230 => draw.one_of(&[16_383, 16_384, 65_535, 65_536]),
                _ => draw.among(0..=70_000),
            }
            .min(most)
        };
        let first = len();
        let keys: Vec<usize> = (0..b)
            .map(|_| if keys_are == 0 { first } else { len() })
            .collect();
        let indptr = |counts: &[usize]| {
            let mut ends = vec![0];
            ends.extend(counts.iter().scan(0, |end, &count| {
                *end += count as i32;
                Some(*end)
            }));
            ends
        };
        Self {
            heads: [group * h_kv, h_kv],
            s_q,
            q_indptr: ragged_q.then(|| indptr(&queries)),
            kv_indptr: (keys_are == 1).then(|| indptr(&keys)),
            lens: (keys_are == 2).then(|| keys.iter().map(|&len| len as i32).collect()),
            causal: draw.once_in(3),
            window: draw
                .once_in(4)
                .then(|| draw.one_of(&[1, 2, 100, 193, 1000, 5000])),
            tail: draw
                .once_in(6)
                .then(|| (draw.one_of(&[1, 64, 65]), draw.u64())),
            queries,
            keys,
            split: match draw.once_in(3) {
                true => Split::Every(Split::MULTIPLE * draw.among(4..=80)),
                false => Split::ByLength,
            },
        }
    }

    fn sees(&self, r: usize, j: usize, k: usize) -> bool {
        let past = (self.keys[r] + j) as i64 - (self.queries[r] + k) as i64;
        let shown = |(tail, bits): (usize, u64)| {
            (k + tail)
                .checked_sub(self.keys[r])
                .is_none_or(|i| bits >> (i % 64) & 1 == 1)
        };
        (past >= 0 || !self.causal)
            && self.window.is_none_or(|window| past < window as i64)
            && self.tail.is_none_or(shown)
    }
}

/// Every score is 0 and every P is 1: lse counts the keys, O sums up what tells one from
/// another, both exactly.
fn covered(draw: &mut Draw) {
    const WIDTH: usize = 64;
    let mut sizes = Sizes::draw(draw);
    sizes.causal &= sizes.tail.is_none();
    let b = sizes.keys.len();
    let [h_q, h_kv] = sizes.heads;
    let shape = ProblemShape {
        b,
        s_q: sizes.s_q,
        s_k: *sizes.keys.iter().max().unwrap(),
        h_q,
        h_kv,
        d_qk: WIDTH,
        d_v: WIDTH,
    };
    // Keys overlap in memory, each an element behind the one before: key k of request b has
    // numbers k to k + 63 of that request's, whatever the head.
    let rows_of = |r: usize| match &sizes.kv_indptr {
        Some(indptr) => indptr[r] as usize,
        None => r * shape.s_k,
    };
    let seed = draw.u64() | 1;
    let number = |i: usize| ((i as u64 + 1).wrapping_mul(seed) >> 40) % 128;
    let numbers: Vec<u64> = (0..b * shape.s_k + WIDTH).map(number).collect();
    let kv: Vec<bf16> = numbers.iter().map(|&x| bf16::from_f32(x as f32)).collect();
    let words = sizes.tail.map_or(1, |(tail, _)| tail.div_ceil(64));
    let bits = sizes.tail.map_or(0, |(_, bits)| bits);
    let mask = vec![bits; b * sizes.s_q * words];
    let q = [bf16::ZERO; WIDTH];
    let mut problem = Problem {
        q_indptr: sizes.q_indptr.as_deref(),
        kv_indptr: sizes.kv_indptr.as_deref(),
        cache_seqlens: sizes.lens.as_deref(),
        causal: sizes.causal,
        window: sizes.window,
        tail_mask: sizes.tail.map(|(tail, _)| TailMask { words: &mask, tail }),
        split: sizes.split,
        ..Problem::dense(shape, &q, &kv, 1.0)
    };
    (problem.q.strides, problem.kv.strides) = ([0; 3], [shape.s_k, 1, 0]);

    let plan = Plan::for_threads(&problem, draw.one_of(&THREADS)).unwrap();
    assert_eq!(Plan::from_words(plan.to_words()), Some(plan));
    check_tasks(&sizes, &plan);
    refused_parts(draw, &problem, &plan);
    let options = Options::default();
    let rows = rows(&problem);
    let each = plan.partial_len();
    let mut partials = vec![PATTERN; plan.partials_len()];
    let (mut o, mut lse) = (vec![PATTERN; rows * WIDTH], vec![PATTERN; rows]);
    let written = &output(&problem, Elements::F32(&mut o), &mut lse).into();
    for range in shares(draw, plan.tasks()) {
        let [start, end] = [range.start, range.end].map(|task| task.min(plan.partial_tasks()));
        let own = &mut partials[start * each..end * each];
        used_workspace(|workspace| {
            run_tasks(&problem, &options, &plan, range, workspace, own, written)
        })
        .unwrap();
    }
    for range in shares(draw, plan.merges()) {
        combine(&problem, &plan, range, &partials, written).unwrap();
    }
    let (mut o_alone, mut lse_alone) = (vec![PATTERN; rows * WIDTH], vec![PATTERN; rows]);
    let written = output(&problem, Elements::F32(&mut o_alone), &mut lse_alone);
    used_workspace(|workspace| decode(&problem, &options, workspace, written)).unwrap();
    assert!(
        o.iter()
            .chain(&lse)
            .map(|x| x.to_bits())
            .eq(o_alone.iter().chain(&lse_alone).map(|x| x.to_bits()))
    );

    let mut row = 0;
    for r in 0..b {
        for j in 0..sizes.queries[r] {
            let mut sums = [0; WIDTH];
            let mut count = 0_u64;
            for k in (0..sizes.keys[r]).filter(|&k| sizes.sees(r, j, k)) {
                let numbers = &numbers[rows_of(r) + k..][..WIDTH];
                sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += x);
                count += 1;
            }
            for _ in 0..h_q {
                let (o, lse) = (&o[row * WIDTH..][..WIDTH], lse[row]);
                check(
                    o,
                    lse,
                    &sums,
                    count,
                    &format!("request {r}, query {j}, {:?}", problem.shape),
                );
                row += 1;
            }
        }
    }
    assert_eq!(row, rows);
}

/// A sum of at most 70,000 numbers below 128 is exact in FP32; its quotient is rounded twice.
fn check(o: &[f32], lse: f32, sums: &[u64], count: u64, context: &str) {
    if count == 0 {
        assert!(
            o.iter().all(|x| x.to_bits() == 0) && lse == f32::INFINITY,
            "{context}"
        );
        return;
    }
    let keys = f64::from(lse).exp();
    assert!(
        (keys / count as f64 - 1.0).abs() < 2e-6,
        "{keys} keys, want {count}: {context}"
    );
    for (c, (&o, &sum)) in o.iter().zip(sums).enumerate() {
        let got = f64::from(o) * count as f64;
        let limit = sum as f64 * f64::from(f32::EPSILON) * 1.5;
        assert!(
            (got - sum as f64).abs() <= limit,
            "column {c} sums up to {got}, want {sum}: {context}"
        );
    }
}

/// Threads to plan for.
const THREADS: [usize; 8] = [0, 1, 2, 7, 16, 200, 1 << 20, usize::MAX];

/// The numbers of tasks, of those with partial results and of merges: requests x KV heads x groups of up to 256 rows, or
/// halves or quarters of them, with all keys, or with each KV split apart.
fn check_tasks(sizes: &Sizes, plan: &Plan) {
    let given = [plan.tasks(), plan.partial_tasks(), plan.merges()];
    let mut cuts = [256, 128, 64]
        .into_iter()
        .flat_map(|rows| [(rows, true), (rows, false)]);
    assert!(cuts.any(|(rows, all_keys)| tasks(sizes, rows, all_keys) == given));
}

/// These with tasks of at most `most` rows.
fn tasks(sizes: &Sizes, most: usize, all_keys: bool) -> [usize; 3] {
    let [h_q, h_kv] = sizes.heads;
    let requests = sizes.queries.iter().zip(&sizes.keys);
    let tasks = requests.map(|(&n, &len)| {
        // From the first key that a window leaves to any.
        let first = match sizes.window {
            Some(window) => (len + 1).saturating_sub(n).saturating_sub(window).min(len),
            None => 0,
        };
        let rows = n * h_q / h_kv;
        let groups = rows.div_ceil(256).max(1);
        // Whole panels of 64, as even as can be, and what is left.
        let each = rows.div_ceil(64 * groups) * 64;
        let last = rows - (groups - 1) * each;
        let parts = (groups - 1) * each.div_ceil(most) + last.div_ceil(most);
        let splits = match all_keys {
            true => 1,
            false => sizes.split.ranges(len - first).len(),
        };
        let tasks = h_kv * parts * splits;
        match splits {
            1 => [tasks, 0, 0],
            _ => [tasks, tasks, h_kv * rows],
        }
    });
    tasks.fold([0; 3], |sum, own| [0, 1, 2].map(|i| sum[i] + own[i]))
}

/// Tasks or rows as threads may share them: ranges that cover them, in any order.
fn shares(draw: &mut Draw, count: usize) -> Vec<Range<usize>> {
    let threads = draw.among(1..=9);
    let mut ends: Vec<usize> = (1..threads).map(|_| draw.among(0..=count)).collect();
    ends.extend([0, count]);
    ends.sort_unstable();
    let mut shares: Vec<_> = ends.windows(2).map(|ends| ends[0]..ends[1]).collect();
    for i in (1..shares.len()).rev() {
        shares.swap(i, draw.among(0..=i));
    }
    shares
}
