"""Patched DeepSeek models against their eager attention: real attention widths, random weights, FP32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from optional import needs

torch = needs("torch")
transformers = needs("transformers")
from amla.transformers import patch  # noqa: E402

# Small steps: more threads would wait for each other.
torch.set_num_threads(1)

PROMPT, TOKENS = 20, 64
LIMIT = 1e-4
"""On the difference of logits."""

MODELS = {
    "DeepseekV2": {"moe_intermediate_size": 64, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "DeepseekV3": {"moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
    # Of more keys the indexer names 24.
    "DeepseekV32": {
        "moe_intermediate_size": 64,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "index_topk": 24,
        "index_n_heads": 4,
        "index_head_dim": 128,
    },
}


def build(name: str) -> transformers.PreTrainedModel:
    config = getattr(transformers, f"{name}Config")(
        hidden_size=512,
        vocab_size=1000,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        intermediate_size=256,
        num_attention_heads=16,
        num_key_value_heads=16,
        kv_lora_rank=512,
        q_lora_rank=256,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        max_position_embeddings=256,
        # Wide enough for attention to choose among keys, and to decide the tokens.
        initializer_range=0.06,
        attn_implementation="eager",
        **MODELS[name],
    )
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    assert model.dtype == torch.float32
    return model


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Iterator[transformers.PreTrainedModel]:
    if not hasattr(transformers, f"{request.param}Config"):
        pytest.skip(f"this transformers has no {request.param}")
    with torch.no_grad():
        yield build(request.param)


def prompt(*lengths: int) -> dict[str, torch.Tensor]:
    """Random tokens, padded on the left."""
    generator = torch.Generator().manual_seed(3)
    width = max(lengths)
    tokens = torch.randint(1, 1000, (len(lengths), width), generator=generator)
    mask = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    return {"input_ids": tokens * mask, "attention_mask": mask.long()}


def generate(model: transformers.PreTrainedModel, inputs: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    return model.generate(
        **inputs, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None, **options
    )


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape and (got - want).abs().max() <= LIMIT


def test_attention_decides(model: transformers.PreTrainedModel) -> None:
    """Tests of these models mean something: a token far back changes the logits by far more than the limit."""
    tokens = prompt(PROMPT)["input_ids"]
    other = tokens.clone()
    other[0, 5] = (other[0, 5] + 1) % 1000
    assert (model(tokens).logits - model(other).logits)[0, -1].abs().max() > 100 * LIMIT


@pytest.mark.parametrize("cache", ["StaticCache", "DynamicCache"])
def test_batches_without_padding(model: transformers.PreTrainedModel, cache: str) -> None:
    """Their mask is one for all requests, in steps of several tokens."""
    tokens = prompt(8, 8)["input_ids"]

    def logits() -> torch.Tensor:
        options = {"max_cache_len": 50} if cache == "StaticCache" else {}
        keys = getattr(transformers, cache)(config=model.config, **options)
        steps = [model(part, cache=keys).logits for part in (tokens[:, :3], tokens[:, 3:])]
        return torch.cat(steps, 1)

    want = logits()
    with patch(model):
        assert_near(logits(), want)


@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ((PROMPT,), {}),
        ((PROMPT, 7, 1), {}),
        ((PROMPT, 7), {"cache_implementation": "static"}),
        ((PROMPT, 7), {"num_beams": 2}),
    ],
    ids=["one", "padded", "static", "beams"],
)
def test_tokens(model: transformers.PreTrainedModel, lengths: tuple[int, ...], options: dict[str, Any]) -> None:
    inputs = prompt(*lengths)
    want = generate(model, inputs, **options)
    assert want.shape == (len(lengths), PROMPT + TOKENS) and len(want[0].unique()) > TOKENS // 4
    with patch(model):
        got = generate(model, inputs, **options)
    assert torch.equal(got, want)


@pytest.mark.parametrize("steps", [[84], [20, *[1] * 4, 40, 20]], ids=["prefill", "steps"])
@pytest.mark.parametrize("lengths", [(84,), (84, 9, 50)], ids=["one", "padded"])
def test_logits(model: transformers.PreTrainedModel, steps: list[int], lengths: tuple[int, ...]) -> None:
    """The logits of all tokens at once, or with the cache some at a time."""
    inputs = prompt(*lengths)
    mask = inputs["attention_mask"]

    def logits() -> torch.Tensor:
        if len(steps) == 1:
            return model(**inputs, use_cache=False).logits
        cache, parts, begin = transformers.DynamicCache(config=model.config), [], 0
        for step in steps:
            tokens = inputs["input_ids"][:, begin : begin + step]
            begin += step
            parts.append(model(tokens, attention_mask=mask[:, :begin], cache=cache).logits)
        return torch.cat(parts, dim=1)

    want = logits()
    with patch(model):
        got = logits()
    seen = mask.bool()
    assert_near(got[seen], want[seen])
    assert got.isfinite().all()


def test_the_cache_is_compressed_and_stays_the_models(model: transformers.PreTrainedModel) -> None:
    """A sequence goes on with or without the patch."""
    tokens = prompt(30)["input_ids"]
    want = model(tokens).logits
    cache = transformers.DynamicCache(config=model.config)
    parts = []
    for i in range(3):
        if i % 2 == 0:
            with patch(model):
                parts.append(model(tokens[:, 10 * i : 10 * i + 10], cache=cache).logits)
        else:
            parts.append(model(tokens[:, 10 * i : 10 * i + 10], cache=cache).logits)
    assert_near(torch.cat(parts, dim=1), want)
    layer = cache.layers[0]
    assert layer.keys.shape == (1, 1, 30, 512) and layer.values.shape == (1, 1, 30, 64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(model: transformers.PreTrainedModel, dtype: str) -> None:
    """The patched model is as near to FP32 as the eager one is."""
    tokens = prompt(84)["input_ids"]
    want = model(tokens).logits
    rounded = build(type(model).__name__.removesuffix("ForCausalLM")).to(getattr(torch, dtype))
    eager = rounded(tokens).logits
    with patch(rounded):
        patched = rounded(tokens).logits
    assert patched.dtype == getattr(torch, dtype)
    # Medians of tokens: rounding has a few go to other experts.
    off = [float(((x.float() - want).norm(dim=-1) / want.norm(dim=-1)).median()) for x in (eager, patched)]
    assert off[1] <= 1.1 * off[0] < 0.03


def test_undo(model: transformers.PreTrainedModel) -> None:
    tokens = prompt(PROMPT)["input_ids"]
    want = model(tokens).logits
    patched = patch(model)
    assert not torch.equal(model(tokens).logits, want)
    patched.undo()
    assert torch.equal(model(tokens).logits, want)
    assert model.config._attn_implementation == "eager"
    patched.undo()
    assert torch.equal(model(tokens).logits, want)


def test_compile(model: transformers.PreTrainedModel) -> None:
    tokens = prompt(PROMPT)["input_ids"]
    torch.compiler.reset()
    with patch(model):
        want = model(tokens, use_cache=False).logits
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        assert_near(compiled(tokens, use_cache=False).logits, want)


def test_refusals(model: transformers.PreTrainedModel) -> None:
    with patch(model), pytest.raises(ValueError, match="patched already"):
        patch(model)
    attention = model.model.layers[0].self_attn
    linear = attention.kv_b_proj
    attention.kv_b_proj = torch.nn.Sequential(linear)
    with pytest.raises(TypeError, match="kv_b_proj is a Sequential"):
        patch(model)
    attention.kv_b_proj = linear
    assert model.config._attn_implementation == "eager"
    tokens = prompt(PROMPT)["input_ids"]
    with patch(model):
        additive = torch.zeros(1, 1, PROMPT, PROMPT)
        with pytest.raises(ValueError, match="must be bool"):
            model(tokens, attention_mask=additive)
        model.train()
        attention.attention_dropout = 0.1
        with pytest.raises(ValueError, match="dropout"):
            model(tokens)
        attention.attention_dropout = 0.0
        model.eval()


def test_other_models_are_refused() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 8}
    config = transformers.LlamaConfig(num_hidden_layers=1, num_attention_heads=1, **sizes)
    with pytest.raises(TypeError, match="has no attention of DeepSeek"):
        patch(transformers.LlamaForCausalLM(config))
