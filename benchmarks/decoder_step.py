"""The device time of a decode step that is made of this package's kernels alone, beside its bytes.

All layers of a model in their real shapes with random weights, captured in one CUDA graph: norm and
qkv, attention, o, norm and experts or MLP, and the lm_head, as slots `layer`, `o` and `lm_head`
build them. Where attention is of another kind, as MLA or Mamba, a copy by torch stands in its
place, and the layers are those that have experts. Beside the step stands the time in which this GPU
reads the same weights, by a sum over as many bytes in the same run. No vLLM is needed.

usage: python benchmarks/decoder_step.py [--model NAME] [--tokens M] [--context N] [--layers L]
           [--qkv kept|mxfp4] [--kernels]
exit code: 1 if kernels that overlap give other results than one after the other, 2 without a GPU
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.graph_replays import replay_times, same_when_replayed
from spark_prof.kernels.bench.machine_ceilings import measure_ceilings
from spark_prof.kernels.candidate import (
    Activation,
    ActivationName,
    AttentionLayer,
    ExpertsLayer,
    LinearLayer,
    NormedExpertsLayer,
    NormedLinearLayer,
    NormedMlpLayer,
    NormLayer,
    Replacement,
    RouterLayer,
)
from spark_prof.kernels.formats import Fp8Rows, GlobalScale, MxFp4, NvFp4, TwoStacks
from spark_prof.swaps.builders import build_kept, build_quantized

DEVICE = torch.device("cuda")
PAGE = 16


@dataclass(frozen=True)
class Model:
    """Sizes of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    size: int
    experts: int  # 0 where the MLP is dense
    top_k: int
    inner: int
    vocabulary: int
    form: str  # of the experts or the MLP and, unless it is mxfp4, of qkv and o
    gpt_oss: bool = False  # biases, sinks, a window in every second layer, SwiGLU
    head_norms: bool = False  # of queries and keys
    matrix_rows: int = 0  # behind the first norm, where attention is of another kind
    shared: int = 0  # experts that every token takes beside its own
    activation: ActivationName = "silu"

    @property
    def qkv_rows(self) -> int:
        """Features of queries, keys and values, or of what else is behind the first norm."""
        return self.matrix_rows or (self.heads + 2 * self.kv_heads) * self.size

    @property
    def width(self) -> int:
        """Features of what attention gives to o."""
        return self.heads * self.size


MODELS = {
    "gpt-oss-20b": Model(24, 2880, 64, 8, 64, 32, 4, 2880, 201088, "mxfp4", gpt_oss=True),
    "gpt-oss-120b": Model(36, 2880, 64, 8, 64, 128, 4, 2880, 201088, "mxfp4", gpt_oss=True),
    "qwen3-30b-a3b-nvfp4": Model(
        48, 2048, 32, 4, 128, 128, 8, 768, 151936, "nvfp4", head_norms=True
    ),
    "llama-3.1-8b-fp8": Model(32, 4096, 32, 8, 128, 0, 0, 14336, 128256, "fp8"),
    # Each layer of experts with one of Mamba, which 17 of 23 are in FP8.
    "nemotron-3-nano-fp8": Model(
        23,
        2688,
        64,
        2,
        64,
        128,
        6,
        1856,
        131072,
        "fp8",
        matrix_rows=10304,
        shared=2,
        activation="relu2",
    ),
    "deepseek-v2-lite": Model(
        26, 2048, 16, 16, 128, 64, 6, 1408, 102400, "bf16", matrix_rows=3648, shared=2
    ),
}


def plain(*shape: int) -> torch.Tensor:
    """Random BF16 values of about 1 over the root of the columns."""
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) / shape[-1] ** 0.5


def packed(form: str, *shape: int) -> MxFp4 | NvFp4 | Fp8Rows | torch.Tensor:
    """Random codes of 4 or 8 bits and scales that keep sums near 1, or BF16 values that do."""
    if form == "bf16":
        return plain(*shape)
    if form == "fp8":
        values = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
        scales = torch.full(shape[:-1], shape[-1] ** -0.5, device=DEVICE)
        return Fp8Rows(values.to(torch.float8_e4m3fn), scales)
    codes = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), device=DEVICE, dtype=torch.uint8)
    if form == "mxfp4":
        scales = torch.full((*shape[:-1], shape[-1] // 32), 121, device=DEVICE, dtype=torch.uint8)
        return MxFp4(codes, scales)
    scales = torch.full((*shape[:-1], shape[-1] // 16), 0.25, device=DEVICE)
    value = torch.full((shape[0], 1, 1) if len(shape) == 3 else (), 0.06, device=DEVICE)
    value = value.to(DEVICE)
    return NvFp4(codes, scales.to(torch.float8_e4m3fn), GlobalScale(value, "multiplies"))


@dataclass
class Layer:
    """The kernels of a layer and what their calls need beside the activations."""

    qkv: Replacement  # and the norm before it
    attention: Replacement | None  # None where it is of another kind
    o: Replacement
    mlp: Replacement  # dense or of experts, and the norm before it
    qkv_bias: torch.Tensor | None
    o_bias: torch.Tensor | None
    cache: torch.Tensor


def make_layer(model: Model, number: int, pages: int, quantized: bool) -> Layer:
    """One layer with weights of its own."""
    hidden, name = model.hidden, f"layers.{number}"
    norm = NormLayer(name, torch.ones(hidden, device=DEVICE, dtype=torch.bfloat16), 1e-5)
    four_or_eight = model.form != "mxfp4"
    qkv, o = (
        LinearLayer(name, slot, packed(model.form, *shape) if four_or_eight else plain(*shape))
        for slot, shape in (("qkv", (model.qkv_rows, hidden)), ("o", (hidden, model.width)))
    )
    last = dense_mlp(model, name, norm) if not model.experts else experts_of(model, name, norm)
    qkv_kernel, o_kernel, mlp = (
        build_quantized(part, "mxfp4") if quantized else build_kept(part, insist=True)
        for part in (NormedLinearLayer(name, norm, qkv), o, last)
    )
    attention = None if model.matrix_rows else build_kept(attention_of(model, number), insist=True)
    return Layer(
        qkv_kernel, attention, o_kernel, mlp,
        plain(model.qkv_rows) if model.gpt_oss else None, plain(hidden) if model.gpt_oss else None,
        plain(pages, PAGE, model.kv_heads, 2 * model.size) * model.size**0.5,
    )  # fmt: skip


def attention_of(model: Model, number: int) -> AttentionLayer:
    """Attention of a layer."""
    name = f"layers.{number}"
    head = NormLayer(name, torch.ones(model.size, device=DEVICE), 1e-6)
    heads = head if model.head_norms else None
    window = 128 if model.gpt_oss and number % 2 == 0 else 0
    angle = torch.rand(131072, model.size // 2, device=DEVICE)
    table = torch.cat([angle.cos(), angle.sin()], 1)
    return AttentionLayer(
        name, model.heads, model.kv_heads, model.size, model.size**-0.5, window,
        plain(model.heads) if model.gpt_oss else None, table, True, heads, heads,
    )  # fmt: skip


def experts_of(model: Model, name: str, norm: NormLayer) -> NormedExpertsLayer:
    """Norm, router and experts of a layer."""
    hidden, count = model.hidden, model.experts
    activation = Activation("swiglu" if model.gpt_oss else model.activation)
    rows = activation.halves * model.inner
    experts = ExpertsLayer(
        name, stacked(model, rows, hidden), stacked(model, hidden, model.inner),
        plain(count, rows) if model.gpt_oss else None,
        plain(count, hidden) if model.gpt_oss else None,
        activation,
        RouterLayer(name, count, model.top_k, True, "softmax", None, 1.0, always=model.shared),
    )  # fmt: skip
    gate = LinearLayer(name, "router", plain(count, hidden) * hidden**0.5)
    gate_bias = plain(count) if model.gpt_oss else None
    return NormedExpertsLayer(name, norm, gate, gate_bias, experts)


def stacked(model: Model, *shape: int) -> MxFp4 | NvFp4 | Fp8Rows | torch.Tensor | TwoStacks:
    """A matrix of each expert, those that every token takes last: of BF16 they lie apart."""
    if model.form == "bf16" and model.shared:
        return TwoStacks(plain(model.experts, *shape), plain(model.shared, *shape))
    return packed(model.form, model.experts + model.shared, *shape)


def dense_mlp(model: Model, name: str, norm: NormLayer) -> NormedMlpLayer:
    """Norm, gate and up, and down of a layer."""
    gate_up = LinearLayer(name, "mlp", packed(model.form, 2 * model.inner, model.hidden))
    down = LinearLayer(name, "mlp", packed(model.form, model.hidden, model.inner))
    return NormedMlpLayer(name, norm, gate_up, down)


def make_head(model: Model, quantized: bool) -> tuple[Replacement, torch.Tensor]:
    """The lm_head, and its BF16 weight."""
    weight = plain(model.vocabulary, model.hidden)
    matrix = LinearLayer("lm_head", "lm_head", weight)
    head = build_quantized(matrix, "mxfp4") if quantized else build_kept(matrix, insist=True)
    return head, weight


def step_inputs(model: Model, tokens: int, context: int) -> tuple[torch.Tensor, ...]:
    """Activations, positions, pages, lengths and slots of requests of one new token each."""
    pages = -(-(context + 1) // PAGE)
    most = 4096 // PAGE if context < 4096 else pages
    blocks = torch.zeros((tokens, most), dtype=torch.int32, device=DEVICE)
    blocks[:, :pages] = torch.arange(tokens * pages, device=DEVICE).reshape(tokens, pages)
    lengths = torch.full((tokens,), context + 1, dtype=torch.int32, device=DEVICE)
    positions = torch.full((tokens,), context, dtype=torch.int64, device=DEVICE)
    slots = blocks[:, context // PAGE].long() * PAGE + context % PAGE
    x = torch.randn(tokens, model.hidden, device=DEVICE, dtype=torch.bfloat16)
    return x, positions, blocks, lengths, slots


def step_of(
    model: Model,
    layers: list[Layer],
    head: Replacement,
    weight: torch.Tensor,  # of the head, for cuBLAS where that is measured to be faster
    tokens: int,
    context: int,
) -> Callable[[], torch.Tensor]:
    """A decode step of that many requests."""
    x, positions, blocks, lengths, slots = step_inputs(model, tokens, context)

    def step() -> torch.Tensor:
        y, residual = x, x
        for layer in layers:
            qkv, residual = layer.qkv.run(y, residual, layer.qkv_bias)
            if layer.attention is None:
                attended = qkv[:, : model.width].clone()
            else:
                cached = layer.cache.chunk(2, dim=-1)
                attended = layer.attention.run(qkv, positions, *cached, blocks, lengths, slots)
            y, residual = layer.mlp.run(layer.o.run(attended, layer.o_bias), residual)
        out: torch.Tensor = head.run(y, None) if head.takes(tokens) else y @ weight.T
        return out

    return step


def bytes_of(model: Model, layers: int, tokens: int, quantized: bool) -> float:
    """Bytes of weights that a step reads, if each token takes experts of its own."""
    stored = {"mxfp4": 0.53125, "nvfp4": 0.5625, "fp8": 1.0, "bf16": 2.0}[model.form]
    dense = stored if quantized or model.form != "mxfp4" else 2.0
    matrices = (model.width + model.qkv_rows) * model.hidden * dense
    count = min(tokens * model.top_k, model.experts) + model.shared if model.experts else 1
    matrices_each = Activation(model.activation).halves + 1
    experts = count * matrices_each * model.hidden * model.inner * stored
    gate = 2 * model.experts * model.hidden
    head = model.vocabulary * model.hidden * (stored if quantized else 2.0)
    return layers * (matrices + experts + gate) + head


def timed(step: Callable[[], object], kernels: bool) -> float:
    """Milliseconds of a replay of its CUDA graph, the median of many; prints its kernels."""
    graph, times = replay_times(step, 30)
    if kernels:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            graph.replay()
            torch.cuda.synchronize()
        spent: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for event in profiler.events():
            spent[event.name[:40]] += event.device_time
            calls[event.name[:40]] += 1
        for name, us in spent.most_common(12):
            print(f"  {name:40} {calls[name]:5} calls {us / calls[name]:8.2f} us each {us:9.1f} us")
    return float(median(times))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="gpt-oss-20b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1])
    parser.add_argument("--context", type=int, default=160)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument(
        "--qkv", choices=("kept", "mxfp4"), default="kept", help="o and lm_head, too"
    )
    parser.add_argument("--kernels", action="store_true", help="print the time of each kernel")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    model, quantized = MODELS[options.model], options.qkv == "mxfp4"
    pages = max(options.tokens) * -(-(options.context + 1) // PAGE)
    count = options.layers or model.layers
    torch.manual_seed(1)
    read, right = measure_ceilings(DEVICE).read.median, True
    with torch.no_grad():
        layers = [make_layer(model, n, pages, quantized) for n in range(count)]
        head, weight = make_head(model, quantized)
        for tokens in options.tokens:
            if not layers[0].qkv.takes(tokens):
                print(f"norm and qkv take no {tokens} tokens", flush=True)
                continue
            step = step_of(model, layers, head, weight, tokens, options.context)
            ms = timed(step, options.kernels)
            floor = 1e3 * bytes_of(model, count, tokens, quantized) / read
            print(
                f"{options.model}, {count} layers, qkv {options.qkv}, batch {tokens}, context"
                f" {options.context}, {torch.cuda.get_device_name()}: {ms:.3f} ms a step,"
                f" {ms / floor:.2f} x the {floor:.3f} ms in which its weights are read"
                f"{'' if (same := same_when_replayed(step)) else '; OTHER RESULTS in a graph'}",
                flush=True,
            )
            right = right and same
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
