//! What hosts hand over: caches in pages, ragged or split, several KV heads, windows, masks and sinks.
//! Bit for bit the same problem in the plain layout; against Golden; refusals.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/hosts.rs"]
mod host;

mod any;
mod chosen;
mod golden;
mod largest;
mod layouts;
mod offsets;
mod refusals;
mod sizes;
mod strides;

use any::any_host;
#[cfg(target_pointer_width = "64")]
use chosen::rows_beyond_32_bits;
use chosen::{all_keys_of_split_caches, chosen_keys_in_every_layout, shared_indices};
use golden::{
    hidden_keys_stay_hidden, rows_that_see_nothing, sinks, sinks_without_rivals, tree_masks,
    windows,
};
use largest::{largest_scores, slowly_rising_scores, special_scores};
use layouts::{
    everything_at_once, formats_of_outputs, kv_heads_are_problems_of_their_own,
    layouts_hold_the_same, requests_stay_alone, sinks_of_nothing, tables_of_requests_without_keys,
    triangles_are_causal, wide_windows_show_everything, windows_are_the_last_keys,
};
use offsets::{rope_first_rows, rope_first_rows_in_other_formats};
use strides::{expanded_tensors, strided_block_tables, strided_lengths};

suites![
    layouts_hold_the_same,
    kv_heads_are_problems_of_their_own,
    requests_stay_alone,
    tables_of_requests_without_keys,
    triangles_are_causal,
    wide_windows_show_everything,
    windows_are_the_last_keys,
    sinks_of_nothing,
    formats_of_outputs,
    everything_at_once,
    tree_masks,
    windows,
    sinks,
    sinks_without_rivals,
    rows_that_see_nothing,
    hidden_keys_stay_hidden,
    any_host,
    largest_scores,
    slowly_rising_scores,
    special_scores,
    chosen_keys_in_every_layout,
    shared_indices,
    #[cfg(target_pointer_width = "64")]
    rows_beyond_32_bits,
    all_keys_of_split_caches,
    rope_first_rows,
    rope_first_rows_in_other_formats,
    expanded_tensors,
    strided_block_tables,
    strided_lengths,
];
