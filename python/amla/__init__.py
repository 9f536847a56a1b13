"""Multi-head latent attention (MLA) decode on CPUs.

`decode(q, kv, ...)` computes O and lse; `Plan`, `merge`, `encode` and `Rows` go with it. `help(amla.decode)` has all arguments.

Tensors are torch tensors on the CPU, numpy arrays (BF16 as ml_dtypes' `bfloat16` or as `uint16`), or anything else with
`__dlpack__` or `__array_interface__`, as jax's arrays. They are read in place, with any strides of at least 0 whose last
dimension is contiguous. While a call runs, no other thread may write what it reads, nor touch its outputs, gaps between
their rows included.

A call releases the GIL. Wrong arguments raise `ValueError`, objects and dtypes of the wrong kind `TypeError`; outputs are then
as they were. Results don't depend on the number of threads.
"""

from amla._amla import (
    Plan,
    Rows,
    __version__,
    backend,
    backends,
    decode,
    encode,
    get_num_threads,
    merge,
    permit_amx,
    set_max_backend,
    set_num_threads,
)

__all__ = [
    "Plan",
    "Rows",
    "__version__",
    "backend",
    "backends",
    "decode",
    "encode",
    "get_num_threads",
    "merge",
    "permit_amx",
    "set_max_backend",
    "set_num_threads",
]
