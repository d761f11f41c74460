"""Whether an engine with the package's kernels and drafts says what vLLM's own without drafts says.

With K drafts a step has up to K + 1 tokens a request, so that the kernels run at widths of up to
batch size x (K + 1), as far as they take so many: 16 tokens in all, wider steps are vLLM's own. The
model is the trained one of tests/data/small-moe. First vLLM's own engine, without drafts, keeps its
logits of held-out text, and says how far it is from itself, disturbed by a rounding: the floor.
Then one with n-gram drafts and the swaps is held to the same text. A draft is accepted where it is
what comes next in it, and the rows behind it are compared, too.

The engines' logs and result.txt, which has what is printed, lie in FOLDER. On a processor the
package's kernels do not run: there `--model bf16 --swaps ""` compares drafts alone.

usage: python benchmarks/drafts_agree.py FOLDER [--swaps WORDS] [--model nvfp4|mxfp4|bf16]
           [--batch-sizes N ...] [--drafts K]
exit code: 1 if a batch size fails the gate, mostly near ties were compared, no position of it lies
    behind an accepted draft, no layer is swapped where swaps are asked for, or an engine fails
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.ab import ENGINE, EVERY_LAYER, TRAINED  # noqa: E402
from spark_prof.ab.accuracy_gate import (  # noqa: E402
    Bits,
    Depth,
    GateVerdict,
    LayerError,
    Position,
    Text,
    judge,
)
from spark_prof.ab.agreement import (  # noqa: E402
    bits_of_swaps,
    compare_logits,
    describe,
    keep_logits,
)
from spark_prof.ab.command import engine_command  # noqa: E402
from spark_prof.ab.engine_process import Engine  # noqa: E402
from spark_prof.ab.machine import free_bytes  # noqa: E402
from spark_prof.ab.messages import PromptBatch  # noqa: E402
from spark_prof.ab.result import RankSwaps, decided  # noqa: E402
from spark_prof.errors import CommandError  # noqa: E402
from spark_prof.profiler.draft_steps import ENVIRONMENT  # noqa: E402
from spark_prof.swaps.swap_settings import (  # noqa: E402
    SWAPS_ENVIRONMENT,
    SwapSettings,
    parse_swaps,
)

HELD_OUT = TRAINED / "held-out.txt"
PROMPT_TOKENS, TOKENS = 128, 384
"""Of a request: windows of the held-out text, as in benchmarks/ab.py."""
GPU_CACHE = ("--kv-cache-memory-bytes", "2147483648", "--gpu-memory-utilization", "0.08")
CPU_CACHE = ("--kv-cache-memory-bytes", "268435456")
GRAPHS = '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}'
_SILENCE_SECONDS = 300.0

Lines = Iterator[tuple[str, bool]]
"""Each line with whether what it says is as it has to be."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--swaps", default=EVERY_LAYER, help='what is swapped; "" for nothing')
    parser.add_argument("--model", choices=("nvfp4", "mxfp4", "bf16"), default="nvfp4")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--drafts", type=int, choices=range(1, 16), default=3, metavar="K")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    good = True
    with open(options.folder / "result.txt", "w", encoding="utf-8") as result:
        for line, reached in compared(options):
            text = f"{line}{'' if reached else '  NOT REACHED'}"
            print(text, flush=True)
            print(text, file=result, flush=True)
            good &= reached
    return int(not good)


def compared(options: argparse.Namespace) -> Lines:
    """Runs both engines; what is told of them. A failure of an engine is the last line."""
    with tempfile.TemporaryDirectory() as temporary:
        try:
            yield from _compared(options, Path(temporary))
        except CommandError as error:
            yield str(error), False


def _compared(options: argparse.Namespace, temporary: Path) -> Lines:
    swaps = parse_swaps(options.swaps)
    model = str(model_folder(options.model, temporary / "model"))
    logs, sizes = options.folder.absolute(), options.batch_sizes
    floors: dict[int, tuple[Position, ...]] = {}
    with engine(model, (), {}, logs / "engine-stock.log") as stock:
        stock.start()
        for size in sizes:
            of = "", PromptBatch(size, PROMPT_TOKENS, TOKENS), temporary / f"{size}", HELD_OUT
            keep_logits(stock, *of)
            floors[size] = compare_logits(stock, *of, disturbed=True)
    environment = {ENVIRONMENT: "1", SWAPS_ENVIRONMENT: SwapSettings({"a": swaps}).to_json()}
    drafter = ("--speculative-config", ngrams(options.drafts))
    with engine(model, drafter, environment, logs / "engine-drafts.log") as drafting:
        facts = drafting.start(drafts=(options.drafts,))
        ranks, layers = describe(drafting)
        yield from swap_lines(ranks, swaps_expected=bool(swaps))
        depth = None if facts.layers is None else Depth(facts.layers, facts.routed)
        for size in sizes:
            of = "", PromptBatch(size, PROMPT_TOKENS, TOKENS), temporary / f"{size}", HELD_OUT
            positions = compare_logits(drafting, *of)
            yield from batch_lines(
                size, positions, floors[size], depth, bits_of_swaps(ranks), layers
            )


def model_folder(name: str, folder: Path) -> Path:
    """The folder of the trained model, quantized where a format is asked for."""
    if name == "bf16":
        return TRAINED
    from tests.small_moe.quantize import write

    return write(name, folder)


def ngrams(drafts: int) -> str:
    """Drafts without a drafter's weights: what followed the last three tokens before."""
    return json.dumps({"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 3})


def engine(model: str, options: Sequence[str], environment: Mapping[str, str], log: Path) -> Engine:
    """An engine of the model, not started, with more of vLLM's options and variables."""
    cache = CPU_CACHE if free_bytes() is None else GPU_CACHE
    words = [model, *ENGINE, *cache, "--compilation-config", GRAPHS, *options]
    return Engine(engine_command(words), environment, log, _SILENCE_SECONDS, files=[HELD_OUT])


def swap_lines(ranks: Iterable[RankSwaps], *, swaps_expected: bool) -> Lines:
    """How many layers are swapped, which has to be some where that was asked for, and why not."""
    swaps = [swap for rank in ranks for swap in rank.swaps]
    live = sum(swap.live for swap in swaps)
    yield f"{live} layers swapped, {len(swaps) - live} fell back", bool(live) or not swaps_expected
    for why in dict.fromkeys(f"{swap.slot}: {swap.why}" for swap in swaps if not swap.live):
        yield f"fell back: {why}", True


def batch_lines(
    size: int,
    positions: Sequence[Position],
    floor: Sequence[Position],
    depth: Depth | None = None,
    bits: Bits = "kept",
    layers: Sequence[LayerError] = (),
) -> Lines:
    """What a batch size showed.

    Args:
        size: requests at a time.
        positions: of the engine with drafts against vLLM's own without.
        floor: of vLLM's own against itself, disturbed.
        depth: of the model.
        bits: whether the swaps keep those of the weights.
        layers: each swapped layer alone.
    """
    verdict = judge(positions, bits, floor, layers, depth, text=True)
    behind = [position.kl_nats for position in positions if position.behind > 0]
    of_them = f" (KL there {fsum(behind) / len(behind):.3g} nats)" if behind else ""
    yield (
        f"batch {size}: {len(positions)} positions, {len(behind)} behind an accepted draft"
        f"{of_them}; {_figures(verdict)}; gate {'passed' if verdict.passed else 'failed'}",
        bool(behind) and verdict.passed and bool(verdict.figures and decided(verdict.figures)),
    )
    for reason in verdict.reasons:
        yield f"batch {size}: {reason}", False


def _figures(verdict: GateVerdict) -> str:
    figures, floor, bounds = verdict.figures, verdict.floor, verdict.bounds
    if figures is None or bounds is None or figures.text is None:
        return "nothing finite was compared"
    text = figures.text
    beside = f", floor {_nats_text(floor.text)}" if floor and floor.text else ", no floor"
    return (
        f"agreement {figures.agreement:.4f}, {figures.near_ties} near ties; "
        f"KL {figures.kl_mean:.3g} nats of at most {bounds.kl_mean:.3g}; "
        f"perplexity {text.perplexity_a:.4f} stock, {text.perplexity_b:.4f} with drafts: "
        f"{_nats_text(text)} nats a token{beside}"
    )


def _nats_text(text: Text) -> str:
    return f"{text.extra_nats:+.5f} (standard error {text.error:.5f})"


if __name__ == "__main__":
    sys.exit(main())
