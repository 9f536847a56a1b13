//! A plan on rayon: the same bits for any number of threads.

mod common;

use amla::{Argument, Elements, Error, Options, Output, Plan, Shape, Workspace, decode_on_rayon};
use common::{Case, workspace};
use rayon::ThreadPoolBuilder;

fn ragged() -> Case {
    let mut case = Case::new(5, 2, 5000, 70, (128, 128));
    case.lens = Some(vec![5000, 0, 1500, 333, 4096]);
    case.causal = true;
    case
}

#[test]
fn any_number_of_threads() {
    let case = ragged();
    let options = Options::default();
    let (want_o, want_lse) = case.run(&options);
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    for threads in [1, 2, 3, 7] {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        let mut workspaces: Vec<Box<Workspace>> = (0..threads).map(|_| workspace()).collect();
        let mut partials = vec![f32::NAN; plan.tasks() * plan.partial_len()];
        let (mut o, mut lse) = (vec![0.0; want_o.len()], vec![0.0; want_lse.len()]);
        let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
        pool.unwrap()
            .install(|| {
                decode_on_rayon(
                    &problem,
                    &options,
                    &plan,
                    &mut workspaces,
                    &mut partials,
                    output,
                )
            })
            .unwrap();
        assert!(o == want_o && lse == want_lse, "{threads} threads");
    }
}

#[test]
fn bad_arguments_touch_nothing() {
    let case = ragged();
    let problem = case.problem();
    let plan = Plan::new(&problem).unwrap();
    let other = Case::new(1, 1, 10, 1, (128, 128));
    let other_plan = Plan::new(&other.problem()).unwrap();
    let room = plan.tasks() * plan.partial_len();
    let run = |plan: &Plan, workspaces: usize, partials: usize| {
        let (mut o, mut lse) = (vec![7.0; case.sizes().0], vec![7.0; case.sizes().1]);
        let output = Output::dense(case.shape, Elements::F32(&mut o), &mut lse);
        let mut workspaces: Vec<_> = (0..workspaces).map(|_| workspace()).collect();
        let error = decode_on_rayon(
            &problem,
            &Options::default(),
            plan,
            &mut workspaces,
            &mut vec![0.0; partials],
            output,
        );
        assert!(o.iter().chain(&lse).all(|&x| x == 7.0));
        error.unwrap_err()
    };
    assert_eq!(
        run(&plan, 0, room),
        Error::OutOfRange {
            argument: Argument::Workspace,
            value: 0,
            min: 1,
            max: usize::MAX
        }
    );
    assert_eq!(
        run(&plan, 2, room - 1),
        Error::TooShort {
            argument: Argument::Partials,
            len: room - 1,
            needed: room
        }
    );
    let given: Shape = case.shape;
    let planned = other.shape;
    assert_eq!(
        run(&other_plan, 2, room),
        Error::PlanMismatch { planned, given }
    );
}
