//! What must not change a result: neighbours, the number of heads, used memory; and what little a
//! call needs.

use amla::{
    Argument, Backend, BackendId, Elements, Error, Output, Plan, SharedOutput, Workspace, combine,
    decode, reference, run_tasks,
};
use half::bf16;

use crate::calls::{Bits, MEDIUM, REFERENCES, SMALL, bits, decoded, default_on, dense, pattern};
use crate::common::{Case, modes, run_unseen, workspace};

/// Request `b` of `case`, alone.
fn alone(case: &Case, b: usize) -> Case {
    let mut one = case.clone();
    let part = |data: &[bf16]| {
        let len = data.len() / case.shape.b;
        data[b * len..(b + 1) * len].to_vec()
    };
    one.shape.b = 1;
    one.q = part(&case.q);
    one.kv = part(&case.kv);
    one.v = case.v.as_deref().map(part);
    one.lens = case.lens.as_ref().map(|lens| vec![lens[b]]);
    one
}

/// Row groups of different sizes differ in the order of their stages, and in the stages that pack V
/// and find the maxima. The bits of a row are the same.
pub fn the_number_of_heads_does_not_matter(backend: Backend) {
    const HEADS: usize = 256;
    let mut many = Case::new(1, 1, 1031, HEADS, MEDIUM);
    for separate in [false, true] {
        if separate {
            many = many.separate_v();
        }
        let [q_len, o_len] = [many.shape.d_qk, many.shape.d_v];
        for options in modes(backend) {
            let (o, lse) = decoded(&many.problem(), &options);
            for heads in [160, 128, 96, 80, 64, 32, 16] {
                // A last panel of that size takes other kernels there, or such a call does.
                let other = match backend.id() {
                    BackendId::Avx512Bf16 => matches!(heads % 64, 1..=28),
                    BackendId::NeonBf16 => false,
                    _ => heads <= 16,
                };
                if other {
                    continue;
                }
                for first in [0, HEADS - heads] {
                    let mut part = many.clone();
                    part.shape.h_q = heads;
                    part.q = many.q[first * q_len..][..heads * q_len].to_vec();
                    let got = decoded(&part.problem(), &options);
                    let want = (&o[first * o_len..][..heads * o_len], &lse[first..][..heads]);
                    assert!(
                        (&got.0[..], &got.1[..]) == want,
                        "{heads} from {first}, {options:?}"
                    );
                }
            }
        }
    }
}

pub fn neighbours_do_not_matter(backend: Backend) {
    let mut case = Case::new(5, 2, 4200, 3, SMALL).separate_v();
    case.lens = Some(vec![4200, 1, 0, 2100, 200]);
    case.causal = true;
    // One of them is all NaN.
    for k in 0..200 {
        case.key(4, k).fill(bf16::NAN);
    }
    let requests: Vec<Case> = (0..5).map(|b| alone(&case, b)).collect();
    let order = [3, 0, 4, 2, 1];
    let mut permuted = case.clone();
    let gather = |part: fn(&Case) -> &[bf16]| -> Vec<bf16> {
        order
            .iter()
            .flat_map(|&b| part(&requests[b]))
            .copied()
            .collect()
    };
    permuted.q = gather(|case| &case.q);
    permuted.kv = gather(|case| &case.kv);
    permuted.v = Some(gather(|case| case.v.as_ref().unwrap()));
    permuted.lens = Some(order.map(|b| case.lens.as_ref().unwrap()[b]).to_vec());
    for options in modes(backend) {
        let all = decoded(&case.problem(), &options);
        let permuted = decoded(&permuted.problem(), &options);
        let part = |(o, lse): &Bits, b: usize| {
            let (o_len, lse_len) = requests[0].sizes();
            let o = o[b * o_len..(b + 1) * o_len].to_vec();
            (o, lse[b * lse_len..(b + 1) * lse_len].to_vec())
        };
        for (b, request) in requests.iter().enumerate() {
            let want = part(&all, b);
            let context = format!("request {b}, {options:?}");
            assert!(decoded(&request.problem(), &options) == want, "{context}");
            let index = order.iter().position(|&other| other == b).unwrap();
            assert!(part(&permuted, index) == want, "{context}");
            // A cache of just its keys.
            let mut short = request.clone();
            let len = usize::try_from(request.lens.as_ref().unwrap()[0]).unwrap();
            short.shape.s_k = len;
            short.lens = None;
            short.kv.truncate(len * 128);
            short.v.as_mut().unwrap().truncate(len * 128);
            assert!(decoded(&short.problem(), &options) == want, "{context}");
        }
    }
}

/// A workspace with all bits set, then one that another problem has used.
pub fn used_memory_does_not_matter(backend: Backend) {
    let mut other = Case::new(1, 1, 400, 130, MEDIUM);
    other.kv.fill(bf16::INFINITY);
    let cases = [
        {
            let mut case = Case::new(2, 2, 2100, 9, SMALL);
            case.lens = Some(vec![2100, 0]);
            case
        },
        // Odd and short blocks, panels that aren't full.
        Case::new(1, 1, 193, 65, MEDIUM),
        Case::new(1, 1, 1, 1, (576, 512)),
        Case::new(1, 3, 2, 1, SMALL),
    ];
    let mut bytes = vec![0xff_u8; size_of::<Workspace>() + 64];
    let start = bytes.as_ptr().align_offset(64);
    for case in cases {
        let problem = case.problem();
        let plan = Plan::new(&problem).unwrap();
        for options in modes(backend) {
            let want = decoded(&problem, &options);
            for filled in [true, false] {
                if filled {
                    bytes.fill(0xff);
                }
                let dirty = Workspace::from_bytes(&mut bytes[start..]).unwrap();
                if !filled {
                    let problem = other.problem();
                    dense(other.shape, |output| {
                        decode(&problem, &options, dirty, output)
                    });
                }
                let got = dense(case.shape, |output| {
                    decode(&problem, &options, dirty, output)
                });
                assert!(got == want, "{:?}, {options:?}", case.shape);
            }
            bytes.fill(0xff);
            let dirty = Workspace::from_bytes(&mut bytes[start..]).unwrap();
            let nan = f32::from_bits(u32::MAX);
            let mut partials = vec![nan; plan.partials_len()];
            let got = dense(case.shape, |output| {
                let output = &SharedOutput::from(output);
                let tasks = 0..plan.tasks();
                run_tasks(
                    &problem,
                    &options,
                    &plan,
                    tasks,
                    dirty,
                    &mut partials,
                    output,
                )?;
                combine(&problem, &plan, 0..plan.merges(), &partials, output)
            });
            assert!(got == want, "{:?}, {options:?}", case.shape);
        }
    }
}

pub fn empty_batch(backend: Backend) {
    let options = default_on(backend);
    for lens in [None, Some(vec![])] {
        let mut case = Case::new(0, 2, 2000, 3, SMALL).separate_v();
        case.lens = lens;
        let problem = case.problem();
        let (mut o, mut lse) = (pattern(7), pattern(7));
        let mut workspace = workspace();
        let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
        decode(&problem, &options, &mut workspace, output).unwrap();
        let plan = Plan::new(&problem).unwrap();
        assert_eq!(plan.tasks(), 0);
        let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
        combine(&problem, &plan, 0..0, &[], &output.into()).unwrap();
        assert_eq!(
            (bits(&o), bits(&lse)),
            (bits(&pattern(7)), bits(&pattern(7)))
        );
        for (_, reference) in REFERENCES {
            reference(&problem, 16, &mut [], &mut []).unwrap();
        }
        reference::golden(&problem, &mut [], &mut []).unwrap();
        // There is no task to run.
        for task in [0, 1] {
            let mut partial = pattern(plan.partial_len());
            let result = run_unseen(
                &problem,
                &options,
                &plan,
                task..task + 1,
                &mut workspace,
                &mut partial,
            );
            let error = result.unwrap_err();
            let named = matches!(
                error,
                Error::OutOfRange { argument: Argument::Task, value, .. } if value == task + 1
            );
            assert!(named, "{error:?}");
            assert_eq!(bits(&partial), bits(&pattern(partial.len())));
        }
    }
}
