//! `Plan`.

use std::hash::{Hash, Hasher};

use pyo3::prelude::{Bound, PyAny, PyResult, pyclass, pymethods};
use pyo3::types::PyDict;

use crate::arguments::Arguments;
use crate::error::refused;
use crate::pool;

/// How a call is cut into tasks for some threads. It takes `decode`'s arguments, of which it reads sizes and lengths only.
///
/// One plan serves all calls with these sizes and lengths, as those of all layers of a step. Others refuse it.
#[pyclass(frozen, eq, hash, module = "amla")]
#[derive(PartialEq, Eq)]
pub struct Plan {
    pub plan: amla::Plan,
    /// Threads that it was made for.
    #[pyo3(get)]
    pub threads: usize,
}

impl Hash for Plan {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.plan.to_words(), self.threads).hash(state);
    }
}

#[pymethods]
impl Plan {
    #[new]
    #[pyo3(
        signature = (q, kv, **named),
        text_signature = "(q, kv, *, threads=None, v=None, q_rope=None, k_rope=None, head_dim_v=None, value_offset=0, \
            softmax_scale=None, causal=False, window=None, tail_mask=None, cache_seqlens=None, \
            block_table=None, cu_seqlens_q=None, cu_seqlens_k=None, indices=None, topk_length=None, \
            extra_k_cache=None, extra_indices_in_kvcache=None, extra_topk_length=None, paged=None, \
            attn_sink=None, split_keys=None)"
    )]
    fn new<'py>(
        q: &Bound<'py, PyAny>,
        kv: &Bound<'py, PyAny>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        let arguments = Arguments::read("Plan", q, kv, named, &mut |_, _| Ok(false))?;
        let threads = arguments.threads.unwrap_or_else(pool::default);
        let plan = amla::Plan::for_threads(&arguments.problem()?, threads).map_err(refused)?;
        Ok(Self { plan, threads })
    }

    /// Independent tasks.
    #[getter]
    fn tasks(&self) -> usize {
        self.plan.tasks()
    }

    /// Tasks that compute one KV split each. Their results are merged.
    #[getter]
    fn partial_tasks(&self) -> usize {
        self.plan.partial_tasks()
    }

    /// FP32 numbers of all partial results.
    #[getter]
    fn partials_len(&self) -> usize {
        self.plan.partials_len()
    }

    fn __repr__(&self) -> String {
        let (tasks, threads) = (self.tasks(), self.threads);
        format!("amla.Plan(tasks={tasks}, threads={threads})")
    }
}
