"""Multi-head latent attention (MLA) decode on CPUs.

Tensors are torch tensors on the CPU, numpy arrays (BF16 as ml_dtypes' `bfloat16` or as `uint16`), or anything else with
`__array_interface__` or `__dlpack__`, as jax's arrays. They are read in place, with any strides of at least 0 whose last dimension is
contiguous. No other thread may write them during a call, nor touch its outputs, gaps between their rows included.

A call releases the GIL. Wrong arguments raise `ValueError`, objects of the wrong kind `TypeError`, and leave the outputs as they
were. Results don't depend on the number of threads.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, overload

__version__: str

Tensor: TypeAlias = Any
"""A torch tensor, a numpy array, or anything else with `__array_interface__` or `__dlpack__`."""

Format: TypeAlias = Literal["bf16", "f16", "f32", "fp8", "model1", "int8", "e4m3", "q8_0", "q4_0"]
"""How rows are stored."""

Dtype: TypeAlias = Any
"""`"bfloat16"`, `"float16"` or `"float32"`, or torch's or numpy's dtype of that name."""

class Rows:
    """A tensor whose dtype doesn't say how its rows are stored. `decode` takes it wherever it takes a tensor of rows.

    `fp8`: FlashMLA's rows of 656 bytes. `model1`: FlashMLA's pages, `[pages, page_size, 1, 584]`, whose bytes are `page_size` rows
    of 576 and then `page_size` times 8 scales. `q8_0`, `q4_0`: ggml's blocks of 34 or 18 bytes for 32 columns. `int8`, `e4m3`:
    a number for each column, and an FP32 `scale` for each row: `scale` has the dimensions of `data` but the last.

    A plain tensor of bytes (`uint8`, `float8_e4m3fn`) that is 656 or 584 wide is taken as `fp8` or `model1`.
    """

    def __init__(self, data: Tensor, format: Format, scale: Tensor | None = None) -> None: ...
    @property
    def data(self) -> Tensor: ...
    @property
    def format(self) -> Format: ...
    @property
    def scale(self) -> Tensor | None: ...

class Plan:
    """How a call is cut into tasks for some threads. It takes `decode`'s arguments, of which it reads sizes and lengths only.

    One plan serves all calls with these sizes and lengths, as those of all layers of a step. Others refuse it.
    """

    def __init__(
        self,
        q: Tensor | Rows,
        kv: Tensor | Rows,
        *,
        threads: int | None = None,
        v: Tensor | Rows | None = None,
        q_rope: Tensor | Rows | None = None,
        k_rope: Tensor | Rows | None = None,
        head_dim_v: int | None = None,
        value_offset: int = 0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window: int | None = None,
        tail_mask: Tensor | None = None,
        cache_seqlens: Tensor | None = None,
        block_table: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        indices: Tensor | None = None,
        topk_length: Tensor | None = None,
        extra_k_cache: Tensor | Rows | None = None,
        extra_indices_in_kvcache: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        paged: bool | None = None,
        attn_sink: Tensor | None = None,
        split_keys: int | None = None,
    ) -> None: ...
    @property
    def threads(self) -> int:
        """Threads that it was made for."""

    @property
    def tasks(self) -> int:
        """Independent tasks."""

    @property
    def partial_tasks(self) -> int:
        """Tasks that compute one KV split each. Their results are merged."""

    @property
    def partials_len(self) -> int:
        """FP32 numbers of all partial results."""

    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

@overload
def decode(
    q: Tensor | Rows,
    kv: Tensor | Rows,
    *,
    v: Tensor | Rows | None = None,
    q_rope: Tensor | Rows | None = None,
    k_rope: Tensor | Rows | None = None,
    head_dim_v: int | None = None,
    value_offset: int = 0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    tail_mask: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    block_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    indices: Tensor | None = None,
    topk_length: Tensor | None = None,
    extra_k_cache: Tensor | Rows | None = None,
    extra_indices_in_kvcache: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    paged: bool | None = None,
    attn_sink: Tensor | None = None,
    split_keys: int | None = None,
    precision: Literal["bf16", "bf16x2"] = "bf16",
    inputs: Literal["as_given", "bf16"] = "as_given",
    rescale: Literal["exact", "compensated"] = "exact",
    backend: str | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    max_logits: None | Literal[False] = None,
    out_dtype: Dtype | None = None,
    lse_base: Literal["e", "2"] = "e",
    empty_lse: float = ...,
    plan: Plan | None = None,
    threads: int | None = None,
) -> tuple[Tensor, Tensor]:
    """O and lse of `O = softmax(softmax_scale * Q K^T) V`, and the largest scores if wanted. `help(amla.decode)` has all arguments."""

@overload
def decode(
    q: Tensor | Rows,
    kv: Tensor | Rows,
    *,
    max_logits: Literal[True] | Tensor,
    **arguments: Any,
) -> tuple[Tensor, Tensor, Tensor]: ...
def merge(
    outs: Sequence[Tensor] | Tensor,
    lses: Sequence[Tensor] | Tensor,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    lse_base: Literal["e", "2"] = "e",
    empty_lse: float = ...,
) -> tuple[Tensor, Tensor]:
    """O and lse over all keys, of the results over some of them each: a shared prefix, or a cache sharded over processes.

    All are float32 and contiguous, `out` and `lse` among them: O `[b, s_q, h_q, d_v]` and lse `[b, h_q, s_q]`, or
    `[tokens, h_q, d_v]` and `[h_q, tokens]`. `out` may be `outs[0]`, and `lse` `lses[0]`. The same results in the same order give
    the same bits. Results with a sink can't be merged.
    """

def encode(x: Tensor, format: Format, *, out: Rows | None = None) -> Rows:
    """Rows of numbers, `[..., d]`, in a storage format, as `decode` takes them.

    `fp8` (d 576), `model1` (`[pages, page_size, 1, 512]`), `int8` and `e4m3` are encoded from BF16, to which others are rounded;
    `q8_0` and `q4_0` from FP32, bit for bit as ggml does. x has float32, float16, bfloat16 or uint16 (BF16) numbers.
    `out` has the format and the dimensions of the result; its rows are overwritten. Otherwise tensors are allocated, torch's if x is
    torch's.
    """

def set_num_threads(threads: int) -> None:
    """Threads of calls that don't say how many. At first all that the process may use."""

def get_num_threads() -> int:
    """Threads of calls that don't say how many."""

def backend() -> str:
    """The fastest backend of this processor."""

def backends() -> list[str]:
    """All backends that this processor can run, the slowest first."""

def permit_amx() -> bool:
    """Has Linux let this process use Intel's AMX, and returns whether it may. Call it before anything else."""

def set_max_backend(name: str) -> None:
    """Bars faster backends from this process. Call it before anything else."""
