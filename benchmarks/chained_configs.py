"""Searches the configurations of a layer's kernels where they run: in a chain of all layers.

A kernel by itself, as `kernels tune` times it, has the GPU for itself. In a decode step the next
kernel's blocks come in as soon as registers are free, load their weights and wait: a configuration
of fewer registers may then be the faster one. From the measured configurations on, one field of one
kernel is changed at a time, in all layers; what makes the whole step faster stays. With --keep the
dispatcher of this machine goes by it.

usage: python benchmarks/chained_configs.py RESULT.json [--model NAME] [--tokens M ...]
           [--seconds S] [--qkv kept|mxfp4] [--keep]
exit code: 1 if what was found gives other results, 2 without a GPU
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, cast

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.decoder_step import DEVICE, MODELS, PAGE, Layer, Model, make_layer, plain, step_of
from benchmarks.graph_replays import replay_times
from spark_prof.cores import cores
from spark_prof.kernels.bench.configurations import neighbours
from spark_prof.kernels.bench.results import machine_of
from spark_prof.kernels.candidate import LinearLayer, Replacement
from spark_prof.kernels.dense import LinearConfig, dense_code
from spark_prof.kernels.dispatch import UNIT_COLUMNS
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import LAYER_EXPERTS, MoeConfig, down_code, gate_up_code
from spark_prof.kernels.normed_linear import fits
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import prepare
from spark_prof.kernels.tuning import Tuned, TunedShape, TuningRun, save
from spark_prof.swaps.builders import build_kept, build_quantized

Config = LinearConfig | MoeConfig
PARTS = ("matrix", "experts")
"""The kernels that are searched, as `decoder_step.Layer` names them."""

ALONE = "spark-prof, as fastest alone"
"""What stands as the other kernel in the dispatcher's file."""

_MOST_APART = 2.0**-6
"""Relative L2 difference of results of which only the order of sums differs."""

_WORTH_IT = 0.997
"""A step that takes more of the present one is not told apart from it."""
_REPLAYS, _TURNS = 9, 4


@dataclass
class Chain:
    """A step of all layers of a model, and the configurations of its kernels."""

    layers: list[Layer]
    tokens: int
    step: Callable[[], torch.Tensor]

    def kernels(self, part: str) -> list[Replacement]:
        """Those of a part, of each layer."""
        return [getattr(layer, part) for layer in self.layers]

    def config(self, part: str) -> Config:
        """With which a part's kernels are launched."""
        return cast("Config", self.kernels(part)[0].parts[-1][self.tokens])

    def put(self, part: str, config: Config) -> None:
        """Has all layers' kernels of a part launched so from now on."""
        for kernel in self.kernels(part):
            kernel.parts[-1][self.tokens] = config

    def codes(self, part: str, config: Config) -> list[KernelCode]:
        """What is compiled for it."""
        packed = self.kernels(part)[0].parts[0]
        if isinstance(config, LinearConfig):
            return [dense_code(packed.format, packed.columns, self.tokens, config, norm=True)]
        form, activation = packed.gate_up.format, packed.activation.name
        return [
            gate_up_code(form, packed.hidden, activation, self.tokens, config),
            down_code(form, packed.intermediate, self.tokens, config),
        ]

    def candidates(self, part: str) -> Iterator[Config]:
        """Configurations that differ from the present one in one field."""
        packed = self.kernels(part)[0].parts[0]
        for config in neighbours(self.config(part)):
            if isinstance(config, LinearConfig):
                if config.split * (config.depth - 1) >= -(-packed.columns // UNIT_COLUMNS):
                    continue
                if not fits(packed.columns, self.tokens, config):
                    continue
            yield config


def chains_of(
    model: Model, counts: Sequence[int], *, quantized: bool, context: int = 160
) -> Iterator[Chain]:
    """A step for each number of tokens, with the configurations measured of each kernel alone."""
    pages = max(counts) * -(-(context + 1) // PAGE)
    layers = [make_layer(model, number, pages, quantized) for number in range(model.layers)]
    weight = plain(model.vocabulary, model.hidden)
    matrix = LinearLayer("lm_head", "lm_head", weight)
    head = build_quantized(matrix, "mxfp4") if quantized else build_kept(matrix, insist=True)
    for tokens in counts:
        yield Chain(layers, tokens, step_of(model, layers, head, weight, tokens, context))


def ready(codes: list[KernelCode]) -> bool:
    """Compiles and loads kernels; whether that can be done."""
    try:
        prepare(codes, DEVICE)
    except KernelError:
        return False
    return True


def step_ms(chain: Chain) -> float | None:
    """Milliseconds of a step, None where a kernel cannot be launched."""
    try:
        _, times = replay_times(chain.step, 2 + _REPLAYS)
    except (KernelError, RuntimeError):
        return None
    return float(median(times[2:]))


def search(chain: Chain, seconds: float) -> int:
    """Changes the chain's configurations for the better; how many were tried."""
    tried, end = 0, time.monotonic() + seconds
    waiting = list(PARTS)
    while waiting and time.monotonic() < end:
        part = waiting.pop(0)
        before, present = chain.config(part), step_ms(chain)
        assert present is not None
        configs = list(chain.candidates(part))
        with ThreadPoolExecutor(cores()) as pool:
            able = list(pool.map(ready, [chain.codes(part, config) for config in configs]))
        times: list[tuple[float, int]] = []
        for place, fine in enumerate(able):
            if not fine or time.monotonic() > end:
                continue
            chain.put(part, configs[place])
            tried += 1
            if (ms := step_ms(chain)) is not None:
                times.append((ms, place))
        chain.put(part, before)
        ms, place = min(times, default=(present, 0))
        if ms < _WORTH_IT * present and confirmed(chain, part, before, configs[place]):
            print(
                f"  {part}: {before} -> {configs[place]}: {present:.4f} to {ms:.4f} ms", flush=True
            )
            waiting = [*(other for other in PARTS if other != part), part]
    return tried


def by_turns(
    chain: Chain, before: Mapping[str, Config], after: Mapping[str, Config]
) -> tuple[float, float]:
    """Milliseconds of a step with two sets of configurations; the second stays."""
    times: list[list[float]] = [[], []]
    for _ in range(_TURNS):
        for configs, durations in zip((before, after), times, strict=True):
            for part, config in configs.items():
                chain.put(part, config)
            durations += replay_times(chain.step, 2 + _REPLAYS)[1][2:]
    return float(median(times[0])), float(median(times[1]))


def confirmed(chain: Chain, part: str, before: Config, after: Config) -> bool:
    """Whether it is faster by turns, too; the faster one is put."""
    first, second = by_turns(chain, {part: before}, {part: after})
    if second >= _WORTH_IT * first:
        chain.put(part, before)
        return False
    return True


def agrees(chain: Chain, model: Model, before: Mapping[str, Config]) -> bool:
    """Whether a layer gives the same with both sets of configurations, but for rounding."""
    layer, after = chain.layers[0], {part: chain.config(part) for part in PARTS}
    x = torch.randn(chain.tokens, model.hidden, device=DEVICE, dtype=torch.bfloat16)
    width = model.heads * model.size
    attended = torch.randn(chain.tokens, width, device=DEVICE, dtype=torch.bfloat16)
    # The experts take what o gives with the configurations before: else near ties decide.
    projected = layer.o.run(attended, layer.o_bias)
    results = []
    for configs in (before, after):
        for part in PARTS:
            chain.put(part, configs[part])
        qkv, _ = layer.matrix.run(x, x, layer.qkv_bias)
        y, _ = layer.experts.run(projected, x)
        results.append((qkv, layer.o.run(attended, layer.o_bias), y))
    return all(
        float((a - b).float().norm() / a.float().norm()) < _MOST_APART
        for a, b in zip(*results, strict=True)
    )


def rows_of(chain: Chain, times: tuple[float, float]) -> list[Tuned]:
    """What the dispatcher is told: of a layer's share of a step, before and after."""
    alone_us, us = (1e3 * ms / len(chain.layers) for ms in times)
    rows = []
    for part in PARTS:
        packed, config = chain.kernels(part)[0].parts[0], chain.config(part)
        if isinstance(config, LinearConfig) and not fits(packed.columns, chain.tokens, config):
            continue  # the norm is a kernel by itself
        work = (
            TunedShape("normed", packed.format, packed.rows, packed.columns, chain.tokens)
            if part == "matrix"
            else TunedShape(
                LAYER_EXPERTS,
                packed.gate_up.format,
                packed.gate_up.rows,
                packed.hidden,
                chain.tokens,
                packed.count,
                chain.kernels(part)[0].parts[1],
            )
        )
        rows.append(Tuned(work, asdict(config), us, ALONE, alone_us))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--model", choices=MODELS, default="gpt-oss-20b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=20, help="of a number of tokens")
    parser.add_argument("--qkv", choices=("kept", "mxfp4"), default="kept")
    parser.add_argument("--keep", action="store_true", help="for this user's dispatcher")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    torch.manual_seed(1)
    model, right = MODELS[options.model], True
    steps: list[dict[str, Any]] = []
    rows: list[Tuned] = []
    with torch.no_grad():
        for chain in chains_of(model, options.tokens, quantized=options.qkv == "mxfp4"):
            before = {part: chain.config(part) for part in PARTS}
            tried = search(chain, options.seconds)
            after = {part: chain.config(part) for part in PARTS}
            times = by_turns(chain, before, after)
            same = agrees(chain, model, before)
            right = right and same
            gain = f"{times[0]:.4f} to {times[1]:.4f} ms a step, {times[0] / times[1]:.3f} x"
            print(
                f"{options.model}, {chain.tokens} tokens: {gain}, {tried} tried"
                f"{'' if same else '; OTHER RESULTS'}",
                flush=True,
            )
            rows += rows_of(chain, times)
            steps.append(
                {
                    "tokens": chain.tokens, "tried": tried, "same_results": same,
                    "ms_before": times[0], "ms_after": times[1],
                    "before": {part: asdict(config) for part, config in before.items()},
                    "after": {part: asdict(config) for part, config in after.items()},
                }
            )  # fmt: skip
    machine = machine_of(DEVICE)
    run = TuningRun(
        machine.architecture,
        machine.name,
        datetime.now(UTC).isoformat(timespec="seconds"),
        machine.driver,
        machine.versions,
        tuple(rows),
    )
    if options.keep and right:
        print(f"kept in {save(run)}")
    record = {
        "model": options.model,
        "qkv": options.qkv,
        "steps": steps,
        "run": msgspec.to_builtins(run),
    }
    options.result.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
