//! The public interface: what each entry point refuses, in which words, and that layouts, threads,
//! neighbours and used memory don't change a bit of what it computes.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod any;
mod attention;
mod calls;
mod huge;
mod independence;
mod interface;
mod layouts;
mod plans;
mod refusals;
mod tasks;

use any::any_problem;
use independence::{
    empty_batch, neighbours_do_not_matter, the_number_of_heads_does_not_matter,
    used_memory_does_not_matter,
};
use layouts::{
    bf16_is_f32_rounded, interleaved_outputs, keys_that_overlap, shared_inputs,
    strided_inputs_and_outputs,
};
use tasks::{
    chosen_splits, keys_behind_a_task_do_not_matter, kv_heads_in_turn, panels_alone_and_in_groups,
    panels_that_see_less_alone_and_in_groups, tasks_in_any_order, two_rows_beside_full_groups,
};

suites![
    strided_inputs_and_outputs,
    interleaved_outputs,
    keys_that_overlap,
    shared_inputs,
    bf16_is_f32_rounded,
    tasks_in_any_order,
    chosen_splits,
    kv_heads_in_turn,
    two_rows_beside_full_groups,
    panels_alone_and_in_groups,
    panels_that_see_less_alone_and_in_groups,
    neighbours_do_not_matter,
    keys_behind_a_task_do_not_matter,
    the_number_of_heads_does_not_matter,
    used_memory_does_not_matter,
    empty_batch,
    any_problem,
];
