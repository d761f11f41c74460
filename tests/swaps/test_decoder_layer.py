"""A decoder layer's parts: which run, what attention is called with, and what is brought ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spark_prof.errors import CommandError
from spark_prof.kernels.candidate import AttentionLayer
from spark_prof.kernels.check.attention_oracle import attention_oracle, coded
from spark_prof.kernels.check.inputs import copies
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps.build import BuiltReplacement, SwapPoint, build_all
from spark_prof.swaps.builders import build_kept
from spark_prof.swaps.decoder_layer import PARTS, LayerModules, parts_of, read_part
from spark_prof.swaps.guard import GuardedReplacement, ReplacementError
from spark_prof.swaps.install import Installed, rows_of, summarize
from spark_prof.swaps.layer_parts import part_body, swap_layer
from spark_prof.swaps.layer_trial import try_attention
from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.progress import ALL_LIVE, last_progress
from spark_prof.swaps.swap_settings import SIDES, Swap, SwapSettings, layer_bound, parse_swaps
from tests.emulator.compiler import compiler
from tests.rows import each_row

HEADS, KV_HEADS, SIZE, HIDDEN = 4, 2, 16, 32


class Norm(nn.Module):
    """An RMS norm as vLLM's, which writes to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, HIDDEN), requires_grad=False)
        self.variance_epsilon = 1e-6

    def forward_native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        total = x if residual is None else residual.add_(x)
        normed = total * (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight
        x.copy_(normed)
        return x if residual is None else (x, residual)

    forward = forward_native


class Matrix(nn.Module):
    """A linear layer that returns its product and a bias, as vLLM's."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        weight = torch.linspace(-1, 1, rows * columns).reshape(rows, columns)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None
        self.output_size = rows

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x @ self.weight.T, None


class Attention(nn.Module):
    """The attention module of a layer; what attends adds the positions up."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = Matrix((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN)
        self.o_proj = Matrix(HIDDEN, HEADS * SIZE)
        self.q_size, self.kv_size, self.head_dim = HEADS * SIZE, KV_HEADS * SIZE, SIZE
        self.rotary_emb = SimpleNamespace(__call__=None)
        self.rotary_emb = lambda positions, q, k: (q + positions[:, None], k)
        self.attn = SimpleNamespace(layer_name="attn")
        attended = nn.Module()
        attended.forward = lambda q, k, v: q + k.repeat(1, 2) + v.repeat(1, 2)  # type: ignore[assignment]
        attended.layer_name = "attn"
        attended.impl = inner()
        self.attn = attended


def inner(**changed: Any) -> Any:
    found = {
        "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_size": SIZE, "scale": 0.25,
        "sliding_window": (-1, -1), "sinks": None, "alibi_slopes": None, "logits_soft_cap": 0,
        "kv_cache_dtype": "auto", "kv_sharing_target_layer_name": None,
    }  # fmt: skip
    return type("FlashAttentionImpl", (), found | changed)()


def rotary(positions: int = 128) -> Any:
    table = torch.rand(positions, SIZE)
    return type("RotaryEmbedding", (), {"cos_sin_cache": table, "is_neox_style": True})()


def cached_in_fp8(**held: Any) -> TransformerBlock:
    """A layer with an FP8 cache, and what vLLM's attention holds for it."""
    layer = TransformerBlock()
    layer.attn.rotary_emb = rotary()  # type: ignore[assignment]
    layer.attn.attn.impl = inner(kv_cache_dtype="fp8")  # type: ignore[assignment]
    for name, value in held.items():
        setattr(layer.attn.attn, name, value)
    return layer


class TransformerBlock(nn.Module):
    """A decoder layer of gpt-oss's names."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.attn = Attention()
        mlp = nn.Module()
        mlp.router = Matrix(4, HIDDEN)
        mlp.experts = nn.Module()
        mlp.experts.routed_experts = None
        mlp.experts.moe_config = SimpleNamespace(is_lora_enabled=False, tp_size=1)
        mlp.forward = lambda x: x * 3  # type: ignore[assignment]
        self.mlp = mlp

    def forward(
        self, hidden_states: torch.Tensor, positions: torch.Tensor, residual: torch.Tensor | None
    ) -> Any:
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states.clone())
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        q, k, v = self.attn.qkv_proj(hidden_states)[0].split(
            [self.attn.q_size, self.attn.kv_size, self.attn.kv_size], -1
        )
        q, k = self.attn.rotary_emb(positions, q, k)
        hidden_states = self.attn.o_proj(self.attn.attn(q, k, v))[0]
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class SiluAndMul(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


class LlamaMLP(nn.Module):
    """An MLP as vLLM's."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = Matrix(64, HIDDEN), Matrix(HIDDEN, 32)
        self.down_proj.tp_size, self.down_proj.reduce_results = 1, True  # type: ignore[assignment]
        self.act_fn: nn.Module = SiluAndMul()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]


class LlamaDecoderLayer(TransformerBlock):
    """A decoder layer without experts."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = self.attn, LlamaMLP()

    def forward(  # type: ignore[override]
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> Any:
        return super().forward(hidden_states, positions, residual)


def rows(count: int, seed: int) -> torch.Tensor:
    return torch.randn((count, HIDDEN), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def _sides() -> Any:
    SIDES.names, SIDES.active = ("a", "b"), "b"
    yield
    SIDES.names, SIDES.active = ("a",), "a"


@each_row("first", [True, False])
@each_row("swapped", [(), PARTS[:1], PARTS])
@each_row("kind", [TransformerBlock, LlamaDecoderLayer])
def test_a_layer_of_parts_is_the_layer(
    first: bool, swapped: tuple[Any, ...], kind: type[TransformerBlock]
) -> None:
    """Whatever is left to vLLM; and no argument is written to."""
    layer, positions = kind(), torch.arange(3)
    swapped = tuple(part for part, _ in parts_of("layer", layer) if part in swapped)
    given = (rows(3, 1), None if first else rows(3, 2))
    again = {} if first else {"residual": given[1].clone()}  # type: ignore[union-attr]
    wanted = layer(
        **{"hidden_states": given[0].clone(), "positions": positions, "residual": None} | again
    )
    swap_layer(layer, {part: part_body(layer, part, {}) for part in swapped}, compiled=False)
    copies = [None if each is None else each.clone() for each in given]
    found = layer(hidden_states=given[0], positions=positions, residual=given[1])
    for mine, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, right)
    assert all(torch.equal(a, b) for a, b in zip(given, copies, strict=True) if a is not None)


def test_a_replacement_runs_for_the_tokens_that_it_takes() -> None:
    layer, seen = TransformerBlock(), []

    def run(x: torch.Tensor, residual: torch.Tensor | None, bias: Any) -> Any:
        seen.append((len(x), bias))
        return x.new_zeros((len(x), 128)), x + residual

    choices = {"b": GuardedReplacement("qkv", "own", Replacement(run, 2, "kept"))}
    body = part_body(layer, "normed matrix", choices)
    for count in (1, 2, 3):
        y, total = body.call(rows(count, 1), rows(count, 2))
        assert bool(y.any()) is (count == 3)
        torch.testing.assert_close(total, rows(count, 1) + rows(count, 2))
    SIDES.active = "a"
    assert body.call(rows(1, 1), rows(1, 2))[0].any()
    assert seen == [(1, None), (2, None)]


def context(**changed: Any) -> Any:
    """What vLLM tells attention in a step of 3 requests padded to 4."""
    metadata = {
        "max_query_len": 1, "causal": True, "use_cascade": False,
        "block_table": torch.arange(8).reshape(4, 2), "seq_lens": torch.tensor([5, 6, 7, 0]),
    }  # fmt: skip
    slots = torch.tensor([4, 21, 38, -1])
    cache = torch.zeros(9, KV_HEADS, 16, 2 * SIZE)
    metadata |= {"num_actual_tokens": 4}
    found = SimpleNamespace(**metadata | {k: v for k, v in changed.items() if k in metadata})
    told = {"metadata": found, "cache": cache, "slots": slots} | changed
    return lambda _: (told["metadata"], None, told["cache"], told["slots"])


def attended(
    monkeypatch: pytest.MonkeyPatch,
    count: int = 4,
    sent: bool = False,
    choices: dict[str, GuardedReplacement] | None = None,
    **changed: Any,
) -> Any:
    transfer = pytest.importorskip("vllm.distributed.kv_transfer.kv_transfer_state")
    monkeypatch.setattr(transfer, "has_kv_transfer_group", lambda: sent)
    module = pytest.importorskip("vllm.model_executor.layers.attention.attention")
    monkeypatch.setattr(module, "get_attention_context", context(**changed))
    qkv = torch.zeros(count, (HEADS + 2 * KV_HEADS) * SIZE)
    body = part_body(TransformerBlock(), "attention", choices or {})
    return body.arguments(qkv, torch.arange(count))


@each_row(
    ("width", "changed", "taken"),
    [
        (2, {}, True), (8, {}, True), (1, {}, False), (2, {"num_actual_tokens": 3}, False),
        (2, {"seq_lens": torch.tensor([5, 6, 7])}, False), (2, {"max_query_len": 3}, False),
    ],
)  # fmt: skip
def test_attention_verifies_as_many_drafts_of_each_request(
    width: int, changed: dict[str, Any], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all have as many, and the kernel takes them."""
    kernel = Replacement(lambda *_: None, 16, "kept", width=width)
    told = {"max_query_len": 2, "num_actual_tokens": 4, "seq_lens": torch.tensor([5, 6])} | changed
    given = attended(monkeypatch, choices={"b": GuardedReplacement("attn", "own", kernel)}, **told)
    assert (given is not None) is taken
    if given is not None:
        assert [len(each) for each in given] == [4, 4, 9, 9, 2, 2, 4]


@each_row(
    ("change", "said"),
    [
        (
            lambda mlp: vars(mlp.down_proj).update(tp_size=2, reduce_results=False),
            "adds up itself what ranks return",
        ),
        (lambda mlp: setattr(mlp.gate_up_proj, "bias", torch.ones(64)), "has a bias"),
        (lambda mlp: setattr(mlp, "act_fn", nn.GELU()), "GELU is an activation"),
        # That it is shared out, or adds nothing up, is no reason by itself.
        *(
            (lambda mlp, changed=changed: (
                vars(mlp.down_proj).update(changed), setattr(mlp, "act_fn", nn.GELU())
            ), "GELU is an activation")
            for changed in ({"tp_size": 2}, {"reduce_results": False})
        ),
        (lambda mlp: setattr(mlp, "expert_gate", nn.Linear(1, 1)), "a shared expert"),
    ],
)  # fmt: skip
def test_another_mlp_is_refused(change: Callable[[Any], None], said: str) -> None:
    layer = LlamaDecoderLayer()
    change(layer.mlp)
    with pytest.raises(KernelError, match=said):
        read_part("layer", layer, "normed mlp")


def test_a_layer_with_an_mlp_of_another_class_has_no_parts() -> None:
    layer = LlamaDecoderLayer()
    layer.mlp = type("AnotherMLP", (LlamaMLP,), {})()
    assert LayerModules.of(layer) is None


@pytest.mark.parametrize("fp8", [False, True])
def test_a_layer_without_experts_is_insisted_on_unless_it_is_in_fp8(fp8: bool) -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([LlamaDecoderLayer()])
    if fp8:
        stored = torch.zeros(8, 8).to(torch.float8_e4m3fn)
        model.layers[0].mlp.gate_up_proj.weight = nn.Parameter(stored, requires_grad=False)
    for kernel, whys in (("spark_prof", {not fp8}), ("spark_prof!", {False})):
        places = build_all(model, {"b": (Swap("layer", kernel),)})
        assert [place.point.name for place in places] == [
            f"layers.0.{path}" for path in ("self_attn.qkv_proj", "self_attn.attn", "mlp")
        ]
        assert {"was not measured" in place.choices["b"].why for place in places} == whys


def test_attention_gets_the_cache_where_a_step_only_decodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, positions, keys, values, blocks, lengths, slots = attended(monkeypatch, 3)
    assert keys.shape == values.shape == (9, 16, KV_HEADS, SIZE)
    assert keys.data_ptr() + SIZE * keys.element_size() == values.data_ptr()
    assert [len(each) for each in (positions, blocks, lengths, slots)] == [3] * 4


@each_row(
    "changed",
    [{"max_query_len": 2}, {"causal": False}, {"use_cascade": True}, {"metadata": None},
     {"sent": True}, {"slots": None}, {"slots": torch.tensor([1])}, {"cache": torch.zeros(0)}],
)  # fmt: skip
def test_other_steps_are_vllm_s(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert attended(monkeypatch, **changed) is None


@each_row(
    ("changed", "said"),
    [
        ({"alibi_slopes": torch.ones(4)}, "ALiBi"),
        ({"logits_soft_cap": 30.0}, "caps its logits"),
        ({"kv_sharing_target_layer_name": "other"}, "another layer's"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "its KV cache is fp8_e5m2, neither bfloat16 nor E4M3"),
        ({"kv_cache_dtype": "fp8_per_token_head"}, "neither bfloat16 nor E4M3"),
        ({"dcp_world_size": 2}, "spread over ranks"),
    ],
)
def test_attention_that_the_kernel_has_not_is_refused(changed: dict[str, Any], said: str) -> None:
    layer = TransformerBlock()
    layer.attn.attn.impl = inner(**changed)  # type: ignore[assignment]
    layer.attn.rotary_emb = rotary()  # type: ignore[assignment]
    with pytest.raises(KernelError, match=said):
        read_part("attn", layer, "attention")


@each_row(
    ("held", "said"),
    [
        ({"_k_scale": torch.ones(KV_HEADS), "_v_scale": torch.ones(1)}, "a scale for each head"),
        ({"k_scale": torch.zeros(()), "v_scale": torch.ones(())}, "are 0 and 1"),
        ({"calculate_kv_scales": True}, "the first step computes the scales"),
    ],
)
def test_other_scales_of_an_fp8_cache_are_refused(held: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelError, match=said):
        read_part("attn", cached_in_fp8(**held), "attention")


@each_row(
    ("loaded", "made"),
    [((0.02, 0.5), (0.02, 0.5)), ((-1.0, -1.0), (1.0, 1.0)), ((0.25, -1.0), (0.25, 0.25))],
)
def test_scales_of_an_fp8_cache_are_what_vllm_makes_of_them(
    loaded: tuple[float, float], made: tuple[float, float]
) -> None:
    """Before vLLM has processed a checkpoint's, and after."""
    method = pytest.importorskip("vllm.model_executor.layers.quantization.kv_cache")
    attention = pytest.importorskip("vllm.model_executor.layers.attention.attention")
    layer = cached_in_fp8()
    module = layer.attn.attn
    attention.set_default_quant_scales(module, register_buffer=True)
    module.kv_cache_dtype, module.calculate_kv_scales = "fp8", False  # type: ignore[assignment]
    base = method.BaseKVCacheMethod(None)
    base.create_weights(module)
    for name, scale in zip(("k_scale", "v_scale"), loaded, strict=True):
        module.get_parameter(name).data.fill_(scale)
    before = read_part("attn", layer, "attention")
    base.process_weights_after_loading(module)
    after = read_part("attn", layer, "attention")
    assert isinstance(before, AttentionLayer)
    assert isinstance(after, AttentionLayer)
    assert before.fp8_scales == after.fp8_scales == pytest.approx(made)
    assert after.fp8_scales == (module._k_scale_float, module._v_scale_float)


@each_row("part", PARTS[:3])
def test_no_part_runs_where_adapters_do(part: Any) -> None:
    layer = TransformerBlock()
    layer.mlp.experts.moe_config.is_lora_enabled = True
    with pytest.raises(KernelError, match="LoRA"):
        read_part("layer", layer, part)


@each_row(("window", "tokens"), [((-1, -1), 0), ((127, 0), 128)])
def test_attention_is_read(window: tuple[int, int], tokens: int) -> None:
    layer = TransformerBlock()
    layer.attn.attn.impl = inner(sliding_window=window)  # type: ignore[assignment]
    layer.attn.rotary_emb = rotary()  # type: ignore[assignment]
    found = read_part("attn", layer, "attention")
    assert isinstance(found, AttentionLayer)
    assert (found.heads, found.kv_heads, found.size, found.window) == (4, 2, 16, tokens)
    assert found.cos_sin.dtype == torch.float32
    assert torch.equal(found.cos_sin, layer.attn.rotary_emb.cos_sin_cache.bfloat16().float())


def test_norms_are_refused_beside_layers_that_have_them() -> None:
    with pytest.raises(CommandError, match="layer has norm in it"):
        parse_swaps("layer=spark_prof,norm=spark_prof,o=spark_prof")
    assert len(parse_swaps("layer=spark_prof,qkv=spark_prof,moe=spark_prof,o=spark_prof")) == 4


@each_row(
    ("window", "fault", "scales"),
    [
        (0, "", ()), (40, "", ()), (40, "", (0.05, 0.2)), (0, "", (1.0, 1.0)),
        (40, "result", ()), (0, "result", (0.05, 0.2)), (40, "result", (1.0, 1.0)),
        (0, "scales", (0.05, 0.2)), (40, "scales", (1.0, 1.0)),
    ],
)  # fmt: skip
def test_attention_is_tried_on_a_cache_that_is_made_up(
    window: int, fault: str, scales: tuple[float, ...]
) -> None:
    layer = TransformerBlock()
    if scales:
        layer = cached_in_fp8(_k_scale=torch.tensor(scales[0]), _v_scale=torch.tensor(scales[1]))
    layer.attn.rotary_emb = rotary()  # type: ignore[assignment]
    layer.attn.attn.impl = inner(  # type: ignore[assignment]
        sliding_window=(window - 1, 0), kv_cache_dtype="fp8_e4m3" if scales else "auto"
    )
    read = read_part("attn", layer, "attention")
    assert isinstance(read, AttentionLayer)
    if fault == "scales":
        assert read.fp8_scales
        read = replace(read, fp8_scales=(read.fp8_scales[0], 2 * read.fp8_scales[1]))

    def run(*given: torch.Tensor) -> torch.Tensor:
        found, *of_cache = attention_oracle(read, *copies(given))  # type: ignore[arg-type]
        slots, lengths = given[6], given[5]
        real = (slots >= 0) & (lengths > 0)
        for cache, new in zip(given[2:4], of_cache, strict=True):
            values = new.value[real]
            codes = coded(values).view(torch.uint8) if scales else values.to(cache.dtype)
            cache[slots[real] // 16, slots[real] % 16] = codes
        return (found.value * (1.05 if fault == "result" else 1)).to(torch.bfloat16)

    guarded = GuardedReplacement("attn", "own", Replacement(run, 16, "kept"))
    try_attention(guarded, SwapPoint("layer", "attn", layer, "attention"), 60.0)
    assert guarded.live is not bool(fault)
    assert bool(fault) is ("on trial with" in guarded.why)


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler: kernels do not run")
def test_the_kernel_reads_and_writes_an_fp8_cache_as_the_trial_wants_it() -> None:
    layer = cached_in_fp8(_k_scale=torch.tensor(0.05), _v_scale=torch.tensor(0.2))
    read = read_part("attn", layer, "attention")
    guarded = GuardedReplacement("attn", "own", build_kept(read, insist=True))
    try_attention(guarded, SwapPoint("layer", "attn", layer, "attention"), 60.0)
    assert guarded.live, guarded.why
    assert sum(guarded.calls.values()) == 5, "one of them of requests with two new tokens each"
    assert guarded.error is not None
    assert 0 < guarded.error.relative_l2 < layer_bound("kept", "layer", "attn")


def test_each_part_says_which_it_is_and_how_far_off_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    layer, swap = TransformerBlock(), Swap("layer", "spark_prof")
    state = Installed(SwapSettings({"b": (swap,)}))
    for number, (part, path) in enumerate(parts_of("model.layers.0", layer)):
        guarded = GuardedReplacement(
            path, "own", Replacement(lambda: None, 16, "kept", line="mxfp4")
        )
        guarded.error = (
            ReplacementError(0.001 * number, 0, "2 rows", beyond=False) if number else None
        )
        point = SwapPoint("layer", path, layer, part)
        state.places.append(BuiltReplacement(point, {"b": swap}, {"b": guarded}))
    rows_ = rows_of(state)
    assert [row["line"] for row in rows_] == [f"{part}: mxfp4" for part in PARTS[:3]]
    assert rows_[2]["layer_error"]["relative_l2"] == 0.002
    with caplog.at_level("INFO", "vllm.spark_prof"):
        summarize(state)
    assert last_progress("\n".join(caplog.messages)) == ALL_LIVE
    assert [line for line in caplog.messages if "spark-prof: " not in line] == [
        "layer=spark_prof runs in 3 of 3 layers (side b); at most off on trial: attention 0.10%,"
        " normed experts 0.20%"
    ]


def test_a_slot_whose_layers_are_all_in_layer_is_not_said_to_be_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    layer, swaps = TransformerBlock(), parse_swaps("layer=spark_prof,qkv=spark_prof")
    state = Installed(SwapSettings({"a": swaps[1:], "b": swaps}))
    guarded = GuardedReplacement("x", "own", Replacement(lambda: None, 16, "kept"))
    for part, path in parts_of("model.layers.0", layer):
        point = SwapPoint("layer", path, layer, part)
        state.places.append(BuiltReplacement(point, {"b": swaps[0]}, {"b": guarded}))
    with caplog.at_level("INFO", "vllm.spark_prof"):
        summarize(state)
    assert [line for line in caplog.messages if ": the model" in line or "leaves" in line] == [
        "qkv=spark_prof: the model has no such layer",
        "qkv=spark_prof: slot layer leaves it none of the model's layers",
    ]


def test_experts_that_make_their_logits_are_allowed_a_rounding_of_one() -> None:
    own = layer_bound("kept", "moe", "model.layers.3.mlp.experts")
    assert own < layer_bound("kept", "layer", "model.layers.3.mlp.experts") < 0.1
    assert layer_bound("kept", "layer", "model.layers.3.attn.qkv_proj") == own
