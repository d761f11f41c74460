"""Tensor parallel ranks: shards as vLLM's loaders make them, sums, and what all ranks swap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spark_prof.kernels.candidate import (
    ExpertsLayer,
    LinearLayer,
    NormedExpertsLayer,
    NormedMlpLayer,
    NormLayer,
)
from spark_prof.kernels.check.inputs import Weight, make_weight
from spark_prof.kernels.check.oracles import normed_experts_oracle, normed_mlp_oracle
from spark_prof.kernels.formats import MxFp4, NvFp4
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps import decoder_layer, install, layer_parts, tensor_parallel
from spark_prof.swaps.build import BuiltReplacement, SwapPoint
from spark_prof.swaps.builders import build_kept
from spark_prof.swaps.decoder_layer import PARTS, parts_of, read_part
from spark_prof.swaps.guard import GuardedReplacement
from spark_prof.swaps.install import Installed
from spark_prof.swaps.layer_parts import part_body, swap_layer
from spark_prof.swaps.layers import Replacement
from spark_prof.swaps.live_weights import EXPERTS, read_layer, stored_as
from spark_prof.swaps.swap_settings import SIDES, Swap, SwapSettings
from spark_prof.swaps.tensor_parallel import RankAnswer, turn_off_differing, unreduced
from tests.emulator.compiler import compiler
from tests.rows import each_row
from tests.swaps import vllm_layers
from tests.swaps.test_decoder_layer import (
    HEADS,
    KV_HEADS,
    SIZE,
    LlamaDecoderLayer,
    Matrix,
    TransformerBlock,
    rows,
)
from tests.swaps.vllm_checkpoints import load_experts, load_gpt_oss, values

RANKS = 2
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _float32(request: pytest.FixtureRequest) -> Iterator[None]:
    """As torch's default where a test makes its own layers: a vLLM that is there has another."""
    before = torch.get_default_dtype()
    if "vllm_world" not in request.fixturenames:
        torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


# Shards of experts, as vLLM's loaders make them.


def shard(quantization: str, rank: int, **more: Any) -> Any:
    """The experts of a rank, without weights."""
    runner = vllm_layers.experts(quantization, tp_size=RANKS, **more)
    runner.moe_config.moe_parallel_config.tp_rank = rank
    return runner


def read(runner: Any) -> ExpertsLayer:
    layer = read_layer("experts", runner, "moe")
    assert isinstance(layer, ExpertsLayer)
    return layer


def joined(shards: list[ExpertsLayer]) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up, and down, of all ranks."""
    halves = [values(layer.gate_up).chunk(2, 1) for layer in shards]
    gate_up = torch.cat([part for parts in zip(*halves, strict=True) for part in parts], 1)
    return gate_up, torch.cat([values(layer.down) for layer in shards], 2)


@pytest.mark.usefixtures("vllm_world")
@each_row(
    "quantization",
    ["bf16", "modelopt nvfp4", "compressed nvfp4", "compressed mxfp4", "fp8", "compressed fp8"],
)
def test_the_shards_of_two_ranks_are_the_experts(quantization: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    shards = []
    for rank in range(RANKS):
        runner = shard(quantization, rank, **sizes)
        module = runner.routed_experts
        gate_up, down = load_experts(module, stored_as(module, EXPERTS), 64, 128)
        shards.append(read(runner))
        assert shards[-1].down.shape == (4, 64, 64)
    for mine, right in zip(joined(shards), (gate_up, down), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=0)


OPENAI = {"activation": "swigluoai", "has_bias": True}


def gpt_oss_shards(hidden: int, inner: int) -> tuple[ExpertsLayer, list[ExpertsLayer]]:
    """All experts, and each rank's, cut in whole blocks as vLLM's gpt-oss does it."""
    sizes = {"hidden_size": hidden, "intermediate_size": inner}
    whole = vllm_layers.experts("gpt-oss", **sizes, **OPENAI)
    load_gpt_oss(whole.routed_experts, hidden, inner)
    of_rank = -(-(inner // 32) // RANKS) * 32
    shards = []
    for rank in range(RANKS):
        runner = shard("gpt-oss", rank, **sizes, **OPENAI)
        mine, full = runner.routed_experts, whole.routed_experts
        first, end = rank * of_rank, min((rank + 1) * of_rank, inner)
        for name in ("w13_weight", "w13_weight_scale", "w13_bias"):
            part = getattr(full, name)[:, 2 * first : 2 * end]
            getattr(mine, name).data[:, : part.shape[1]] = part
        for name, per in (("w2_weight", 2), ("w2_weight_scale", 32)):
            part = getattr(full, name)[..., first // per : end // per]
            getattr(mine, name).data[..., : part.shape[2]] = part
        mine.w2_bias.data[:] = 0 if rank else full.w2_bias
        shards.append(read(runner))
    return read(whole), shards


@pytest.mark.usefixtures("vllm_world")
@each_row(
    ("inner", "each"),
    [(128, (64, 64)), (96, (64, 64)), (192, (96, 96))],
)
def test_gpt_oss_is_cut_in_whole_blocks(inner: int, each: tuple[int, int]) -> None:
    """Three blocks make two and one, which is zero behind it; padding is in no shard."""
    whole, shards = gpt_oss_shards(64, inner)
    assert tuple(layer.down.shape[2] for layer in shards) == each
    gate_up, down = joined(shards)
    gate, up = values(whole.gate_up).chunk(2, 1)
    cut = sum(each) // 2
    assert torch.equal(gate_up[:, :inner], gate)
    assert torch.equal(gate_up[:, 2 * cut : 2 * cut + inner], up)
    assert torch.equal(down[..., :inner], values(whole.down))
    assert not down[..., inner:].any()
    assert whole.down_bias is not None
    biases = [layer.down_bias for layer in shards]
    assert torch.equal(sum(biases), whole.down_bias)  # type: ignore[arg-type]


@pytest.mark.usefixtures("vllm_world")
def test_what_a_loader_has_put_into_the_padding_is_read() -> None:
    runner = shard("gpt-oss", 0, hidden_size=64, intermediate_size=128, **OPENAI)
    module = runner.routed_experts
    padded = module.w2_weight.shape[2] * 2
    assert padded > 64
    module.w2_weight.data[:, :, 40] = 0x11
    layer = read(runner)
    assert layer.down.shape == (4, 64, padded)
    assert layer.gate_up.shape == (4, 2 * padded, 64)
    assert values(layer.down)[:, :, 80].any()


# What kernels make of shards.


def halves(weight: Weight, rank: int, dim: int) -> Weight:
    """A rank's rows (of gate and of up) or columns of experts or an MLP."""
    if isinstance(weight, torch.Tensor):
        return _half(weight, rank, dim)
    if isinstance(weight, MxFp4):
        return MxFp4(_half(weight.packed, rank, dim), _half(weight.scales, rank, dim))
    assert isinstance(weight, NvFp4)
    scales = _half(weight.scales.view(torch.uint8), rank, dim).view(weight.scales.dtype)
    return NvFp4(_half(weight.packed, rank, dim), scales, weight.global_scale)


def _half(values_: torch.Tensor, rank: int, dim: int) -> torch.Tensor:
    if dim == -1:
        return values_.chunk(RANKS, -1)[rank].contiguous()
    gate_and_up = [part.chunk(RANKS, dim)[rank] for part in values_.chunk(2, dim)]
    return torch.cat(gate_and_up, dim)


def off(shares: list[torch.Tensor], right: torch.Tensor) -> float:
    total = sum(share.double() for share in shares)
    return float((total - right).norm() / right.norm())  # type: ignore[operator]


@needs_compiler
@pytest.mark.usefixtures("vllm_world")
def test_what_two_ranks_make_of_gpt_oss_is_what_one_makes() -> None:
    """The biases of down, too, which the first rank alone has."""
    hidden, inner, tokens = 64, 192, 3
    whole, shards = gpt_oss_shards(hidden, inner)
    numbers = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(tokens, hidden, generator=numbers).bfloat16() for _ in range(2))
    gate = LinearLayer("", "router", torch.randn(4, hidden, generator=numbers).bfloat16())
    norm = NormLayer("", torch.rand(hidden, generator=numbers) + 0.5, 1e-5)

    def layer(experts: ExpertsLayer) -> NormedExpertsLayer:
        return NormedExpertsLayer("", norm, gate, torch.zeros(4).bfloat16(), experts)

    exact, total = normed_experts_oracle(x, residual, layer(whole))
    results = [build_kept(layer(part), insist=True).run(x, residual) for part in shards]
    assert off([share for share, _ in results], exact.value) < 2.0**-7
    for _, sums in results:
        torch.testing.assert_close(sums.double(), total.value, rtol=2.0**-8, atol=0)


@pytest.mark.slow
@needs_compiler
@each_row("kind", ["nvfp4", "mxfp4", "bf16"])
def test_what_two_ranks_make_of_an_mlp_is_what_one_makes(kind: Any) -> None:
    hidden, inner, tokens = 64, 128, 2
    norm = NormLayer("", torch.linspace(0.5, 1.5, hidden), 1e-5)
    gate_up = make_weight(kind, "plain", (2 * inner, hidden), 3, "cpu")
    down = make_weight(kind, "plain", (hidden, inner), 4, "cpu")

    def layer(gate_up: Weight, down: Weight) -> NormedMlpLayer:
        parts = LinearLayer("", "mlp", gate_up), LinearLayer("", "mlp", down)
        return NormedMlpLayer("", norm, *parts)

    x, residual = (
        torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(seed)).bfloat16()
        for seed in (1, 2)
    )
    exact, _ = normed_mlp_oracle(x, residual, layer(gate_up, down))
    shards = [layer(halves(gate_up, rank, 0), halves(down, rank, -1)) for rank in range(RANKS)]
    shares = [build_kept(part, insist=True).run(x, residual)[0] for part in shards]
    assert off(shares, exact.value) < 2.0**-7


# Layers of two ranks that meet, each in a thread.


class Meeting:
    """Adds up what the ranks bring, as vLLM's all-reduce does."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(RANKS, timeout=20)
        self.rank = threading.local()
        self.shares: list[Any] = [None] * RANKS
        self.sums = 0

    def all_reduced(self, share: torch.Tensor) -> torch.Tensor:
        self.shares[self.rank.number] = share
        self.sums += self.barrier.wait() == 0
        total: torch.Tensor = sum(self.shares)
        self.barrier.wait()
        return total

    def together(self, call: Callable[[int], Any]) -> list[Any]:
        """What the call returns on each rank."""
        results: list[Any] = [None] * RANKS

        def of_rank(number: int) -> None:
            self.rank.number = number
            results[number] = call(number)

        threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class RowMatrix(Matrix):
    """A linear layer whose columns are spread over ranks: adds up in its own `forward`."""

    def __init__(self, whole: Matrix, rank: int, meeting: Meeting) -> None:
        super().__init__(1, 1)
        self.weight = nn.Parameter(whole.weight.chunk(RANKS, 1)[rank], requires_grad=False)
        self.meeting, self.tp_size, self.reduce_results = meeting, RANKS, True

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.meeting.all_reduced(x @ self.weight.T), None


def _rows_of(whole: Matrix, rank: int, widths: tuple[int, ...]) -> nn.Parameter:
    """A rank's rows of each of the matrices that were fused into one."""
    parts = [part.chunk(RANKS)[rank] for part in whole.weight.split(widths)]
    return nn.Parameter(torch.cat(parts), requires_grad=False)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Stands for attention: each head by itself, two of queries with one of keys and values."""
    pairs = (part.unflatten(1, (-1, SIZE)).repeat_interleave(2, 1).flatten(1) for part in (k, v))
    return q + sum(pairs)


def layer_of_rank(whole: LlamaDecoderLayer, rank: int, meeting: Meeting) -> LlamaDecoderLayer:
    layer = LlamaDecoderLayer()
    attention, mlp = layer.attn, layer.mlp
    attention.attn.forward = attend
    heads = HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE
    attention.q_size, attention.kv_size = heads[0] // RANKS, heads[1] // RANKS
    attention.qkv_proj.weight = _rows_of(whole.attn.qkv_proj, rank, heads)
    attention.o_proj = RowMatrix(whole.attn.o_proj, rank, meeting)
    mlp.gate_up_proj.weight = _rows_of(whole.mlp.gate_up_proj, rank, (32, 32))
    mlp.down_proj = RowMatrix(whole.mlp.down_proj, rank, meeting)
    return layer


def replaced(layer: LlamaDecoderLayer) -> GuardedReplacement:
    """A kernel in the place of the norm and the MLP: it returns this rank's share."""
    mlp, norm = layer.mlp, layer.post_attention_layernorm

    def run(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed, total = norm(x.clone(), residual.clone())
        inner = mlp.act_fn(normed @ mlp.gate_up_proj.weight.T)
        return inner @ mlp.down_proj.weight.T, total

    return GuardedReplacement("mlp", "own", Replacement(run, 16, "kept"))


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    SIDES.names, SIDES.active = ("a", "b"), "b"
    there = Meeting()
    monkeypatch.setattr(layer_parts, "all_reduced", there.all_reduced)
    yield there
    SIDES.names, SIDES.active = ("a",), "a"


@pytest.mark.parametrize("swapped", ["nothing", "parts without a kernel", "the mlp"])
def test_layers_of_two_ranks_are_the_layer(swapped: str, meeting: Meeting) -> None:
    """Two sums in each, whatever computes its parts."""
    whole, positions = LlamaDecoderLayer(), torch.arange(3)
    whole.attn.attn.forward = attend
    x, residual = rows(3, 1), rows(3, 2)
    expected = whole(positions, x.clone(), residual.clone())
    layers = [layer_of_rank(whole, rank, meeting) for rank in range(RANKS)]
    for layer in layers if swapped != "nothing" else ():
        choices = {"b": replaced(layer)} if swapped == "the mlp" else {}
        bodies = {
            part: part_body(layer, part, choices if part == "normed mlp" else {})
            for part, _ in parts_of("layer", layer)
        }
        swap_layer(layer, bodies, compiled=False)
    results = meeting.together(
        lambda rank: layers[rank](
            positions=positions, hidden_states=x.clone(), residual=residual.clone()
        )
    )
    assert meeting.sums == 2
    for result in results:
        for mine, right in zip(result, expected, strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


@each_row(
    ("change", "reason"),
    [
        (lambda layer: setattr(layer.mlp, "is_sequence_parallel", True), "sequence parallel"),
        (
            lambda layer: setattr(layer.mlp.experts.moe_config, "skip_final_all_reduce", True),
            "adds up itself",
        ),
    ],
)
def test_experts_that_are_added_up_elsewhere_are_refused(
    change: Callable[[Any], None], reason: str
) -> None:
    layer = TransformerBlock()
    change(layer)
    with pytest.raises(KernelError, match=reason):
        read_part("layer", layer, "normed experts")


def test_no_part_runs_where_the_compiler_spreads_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = SimpleNamespace(enable_sp=True)
    config = SimpleNamespace(compilation_config=SimpleNamespace(pass_config=passes))
    config.lora_config = None
    monkeypatch.setattr(decoder_layer, "_engine_config", lambda: config)
    for part in PARTS[:3]:
        with pytest.raises(KernelError, match="enable_sp"):
            read_part("layer", TransformerBlock(), part)


# What ranks agree on.


def guarded(tokens: int = 16, fits: Callable[[int], bool] | None = None) -> GuardedReplacement:
    built = Replacement(lambda *_: None, tokens, "kept", fits=fits)
    return GuardedReplacement("place", "own", built)


KEY = ("layer", "model.layers.0.mlp", "normed mlp", "b")


def answers_of(*ranks: GuardedReplacement | str | None) -> list[RankAnswer]:
    """What ranks say: of their kernel, what failed, or that they have no such place."""
    return [
        (rank, {})
        if isinstance(rank, str)
        else ("", {} if rank is None else {KEY: tensor_parallel._runs(rank)})
        for rank in ranks
    ]


def failed(why: str) -> GuardedReplacement:
    one = guarded()
    one.fail(why, quiet=True)
    return one


@each_row(
    ("other", "why"),
    [
        (guarded(), ""),
        (failed("no memory"), "vLLM's own kernel runs on rank 1: no memory"),
        ("ValueError: x", "vLLM's own kernel runs on rank 1: ValueError: x"),
        (None, "vLLM's own kernel runs on rank 1: it has no such layer"),
        (guarded(8), "rank 1 runs it for other numbers of tokens"),
        (guarded(16, lambda count: count != 3), "rank 1 runs it for other numbers of tokens"),
    ],
)
def test_what_a_rank_does_not_run_no_rank_runs(other: Any, why: str) -> None:
    mine = guarded()
    turn_off_differing({KEY: mine}, answers_of(guarded(), other))
    assert (mine.live, mine.why) == (not why, why)


def test_what_has_failed_here_keeps_its_reason() -> None:
    mine = failed("too large")
    turn_off_differing({KEY: mine}, answers_of(mine, guarded()))
    assert mine.why == "too large"


def test_a_trial_adds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    group = type("Group", (), {"all_reduce": lambda self, share: share * 2, "world_size": 2})()
    monkeypatch.setattr(tensor_parallel, "tensor_parallel_group", lambda: group)
    with unreduced():
        assert group.all_reduce(3) == 3
    assert group.all_reduce(3) == 6


@pytest.mark.parametrize("broken", ["", "_try", "_put_in"])
def test_every_rank_comes_to_agree(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the others would wait for it; what has failed is swapped into no layer."""
    seen: list[tuple[str, str]] = []

    def step(name: str) -> Callable[..., None]:
        def run(_: Any, state: Installed) -> None:
            seen.append((name, state.fault))
            if name == broken:
                raise RuntimeError("broken")

        return run

    for name in ("_try", "_put_in"):
        original = getattr(install, name)
        made = step(name)
        if name == "_put_in" and broken != name:
            made = lambda worker, state, original=original: original(worker, state)  # noqa: E731
        monkeypatch.setattr(install, name, made)
    monkeypatch.setattr(install, "agree", lambda _, fault: seen.append(("agree", fault)))
    state = Installed(SwapSettings({"a": ()}))
    point = SwapPoint("o", "o", nn.Module(), "matrix")
    swap = Swap("o", "own")
    state.places = [BuiltReplacement(point, {"a": swap}, {"a": guarded()})] if broken else []
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(mode=None, splitting_ops=[]), additional_config={}
    )
    worker = SimpleNamespace(vllm_config=config)
    install._load(worker, state, lambda: None)
    agreed = [fault for name, fault in seen if name == "agree"]
    fault = "RuntimeError: broken"
    assert agreed == {"": ["", ""], "_try": [fault, fault], "_put_in": ["", fault]}[broken]
    assert state.fault == (fault if broken else "")
