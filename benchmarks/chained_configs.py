"""Searches the configurations of a step's kernels where they run: in a chain of all layers.

A kernel by itself, as `kernels tune` times it, has the GPU for itself. In a decode step the next
kernel's blocks come in as soon as registers are free, load their weights and wait: a configuration
of fewer registers may then be the faster one. From the measured configurations on, one field of one
kernel is changed at a time, in all layers, or for another of a few layouts; what makes the whole
step faster stays: of qkv, o and lm_head, and of experts or an MLP's gate_up and down. With --keep
slots `layer`, `o` and `lm_head` go by it on this machine.

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
from typing import Any

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.chain_parts import Config, Part, parts_of
from benchmarks.decoder_step import (
    DEVICE,
    MODELS,
    PAGE,
    Layer,
    Model,
    make_head,
    make_layer,
    step_of,
)
from benchmarks.graph_replays import replay_times, same_when_replayed
from spark_prof.cores import cores
from spark_prof.kernels.bench.results import machine_of
from spark_prof.kernels.candidate import Replacement
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import prepare
from spark_prof.kernels.tuning import ALONE, Tuned, TuningRun, save

_MOST_APART = 2.0**-6
"""Relative L2 difference of results of which only the order of sums differs."""

_WORTH_IT = 0.997
"""A step that takes more of the present one is not told apart from it."""
_REPLAYS, _TURNS = 9, 4
_CONFIRMED = 3  # the fastest of a part, by turns, until one of them is faster so, too


@dataclass
class Chain:
    """A step of all layers of a model, and the kernels whose configurations are searched."""

    layers: list[Layer]
    head: Replacement
    tokens: int
    step: Callable[[], torch.Tensor]
    parts: Mapping[str, Part]

    @property
    def configs(self) -> dict[str, Config]:
        """With which its parts are launched."""
        return {name: part.config for name, part in self.parts.items()}

    def put(self, configs: Mapping[str, Config]) -> None:
        """Has parts launched so from now on."""
        for name, config in configs.items():
            self.parts[name].put(config)


def chains_of(
    model: Model, counts: Sequence[int], *, quantized: bool, context: int = 160
) -> Iterator[Chain]:
    """A step for each number of tokens, with the configurations that an engine would have."""
    pages = max(counts) * -(-(context + 1) // PAGE)
    layers = [make_layer(model, number, pages, quantized) for number in range(model.layers)]
    head, weight = make_head(model, quantized)
    for tokens in counts:
        step = step_of(model, layers, head, weight, tokens, context)
        yield Chain(layers, head, tokens, step, parts_of(layers, head, tokens))


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
    waiting = list(chain.parts)
    while waiting and time.monotonic() < end:
        name = waiting.pop(0)
        part = chain.parts[name]
        before, present = part.config, step_ms(chain)
        assert present is not None
        configs = part.candidates()
        with ThreadPoolExecutor(cores()) as pool:
            able = list(pool.map(ready, [part.codes(config) for config in configs]))
        times: list[tuple[float, int]] = []
        for place, fine in enumerate(able):
            if not fine or time.monotonic() > end:
                continue
            part.put(configs[place])
            tried += 1
            if (ms := step_ms(chain)) is not None:
                times.append((ms, place))
        part.put(before)
        for ms, place in sorted(times)[:_CONFIRMED]:
            if ms < _WORTH_IT * present and confirmed(chain, name, before, configs[place]):
                change = f"{before} -> {configs[place]}: {present:.4f} to {ms:.4f} ms"
                print(f"  {name}: {change}", flush=True)
                # Those that wait for their first turn have it before others have a second one.
                waiting += [
                    part_name for part_name in chain.parts if part_name not in (*waiting, name)
                ] + [name]
                break
    return tried


def by_turns(
    chain: Chain, before: Mapping[str, Config], after: Mapping[str, Config]
) -> tuple[float, float]:
    """Milliseconds of a step with two sets of configurations; the second stays."""
    times: list[list[float]] = [[], []]
    for _ in range(_TURNS):
        for configs, durations in zip((before, after), times, strict=True):
            chain.put(configs)
            durations += replay_times(chain.step, 2 + _REPLAYS)[1][2:]
    return float(median(times[0])), float(median(times[1]))


def confirmed(chain: Chain, name: str, before: Config, after: Config) -> bool:
    """Whether it is faster by turns, too, and right where kernels overlap; else `before` is put."""
    first, second = by_turns(chain, {name: before}, {name: after})
    if second < _WORTH_IT * first:
        if same_when_replayed(chain.step):
            return True
        print(f"  {name}: {after} gives other results in a graph", flush=True)
    chain.put({name: before})
    return False


def weighed(chain: Chain, before: Mapping[str, Config]) -> tuple[float, float]:
    """Milliseconds of a step before and after; where it is no faster, all is as it was before."""
    if chain.configs != before:
        first, second = by_turns(chain, before, chain.configs)
        if second < first:
            return first, second
        chain.put(before)
    ms = float(median(replay_times(chain.step, 2 + _REPLAYS)[1][2:]))
    return ms, ms


def agrees(chain: Chain, model: Model, before: Mapping[str, Config]) -> bool:
    """Whether the kernels give the same with both sets of configurations, but for rounding."""
    layer, after = chain.layers[0], chain.configs
    x, attended = (
        torch.randn(chain.tokens, width, device=DEVICE, dtype=torch.bfloat16)
        for width in (model.hidden, model.width)
    )
    # Experts take what o gives with the configurations before: else near ties decide.
    chain.put(before)
    projected = layer.o.run(attended, layer.o_bias)
    results = []
    for configs in (before, after):
        chain.put(configs)
        qkv, _ = layer.qkv.run(x, x, layer.qkv_bias)
        y, _ = layer.mlp.run(projected, x)
        logits = [chain.head.run(x, None)] if "lm_head" in chain.parts else []
        results.append([qkv, layer.o.run(attended, layer.o_bias), y, *logits])
    return all(
        float((a - b).float().norm() / a.float().norm()) < _MOST_APART
        for a, b in zip(*results, strict=True)
    )


def rows_of(chain: Chain, times: tuple[float, float]) -> list[Tuned]:
    """What the dispatcher is told, of a layer's share of a step, before and after.

    Also of parts that stay as they are: else they would go by what was found for a like shape.
    """
    alone_us, us = (1e3 * ms / len(chain.layers) for ms in times)
    return [
        Tuned(part.work, asdict(part.config), us, ALONE, alone_us) for part in chain.parts.values()
    ]


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
    if options.qkv == "mxfp4" and MODELS[options.model].form != "mxfp4":
        parser.error(f"qkv of {options.model} is quantized already")
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    return searched(options)


def searched(options: argparse.Namespace) -> int:
    """Searches for each number of tokens, writes what was found, and keeps it if asked to."""
    torch.manual_seed(1)
    model, right = MODELS[options.model], True
    steps: list[dict[str, Any]] = []
    rows: list[Tuned] = []
    with torch.no_grad():
        for chain in chains_of(model, options.tokens, quantized=options.qkv == "mxfp4"):
            before = chain.configs
            tried = search(chain, options.seconds)
            times = weighed(chain, before)
            same = agrees(chain, model, before) and same_when_replayed(chain.step)
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
                    "after": {part: asdict(config) for part, config in chain.configs.items()},
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
