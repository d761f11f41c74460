"""What a long recording with the torch backend costs the engine: memory that stays, and pauses.

A real vLLM engine in a process of its own runs decode steps at batch 1: so many not recorded, so
many recorded, and some more after the recording. Memory is the engine process's private memory.
Between two tokens lies a step; where a piece was written between them, the step waited for that.
The time of the clock depends on what else runs on the machine, so the processor time that the
engine's own thread took is printed beside it.

usage: python benchmarks/torch_backend_soak.py [MODEL_FOLDER] [--steps 5000] [--request 900]
           [--backend torch] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import write_model  # noqa: E402
from spark_prof.profiler.attach import recordable_among, registered, request_recording  # noqa: E402
from spark_prof.profiler.control import STOP_FILE  # noqa: E402
from spark_prof.profiler.settings import Settings  # noqa: E402
from spark_prof.profiler.watch import Watcher  # noqa: E402
from spark_prof.traces.assemble import assemble  # noqa: E402
from spark_prof.traces.chunks import pieces_folder  # noqa: E402

PROMPT = 16
WARM_UP = 300
AFTER = 300


@dataclass(frozen=True)
class Token:
    """When a token came, and what the engine's thread had used by then."""

    at_ns: int  # since the epoch
    processor_ns: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--request", type=int, default=900, help="tokens of a request")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--keep", help="the bundle goes there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        model = options.model or str(write_model("tiny-moe", Path(folder) / "model"))
        llm = started(model)
        engine = engine_of()
        list(tokens(llm, engine, WARM_UP, options.request))
        print("not recorded", flush=True)
        idle = watched(llm, engine, options)
        bundle = Path(options.keep or Path(folder) / "bundle")
        pieces_folder(bundle).mkdir(parents=True)
        settings = Settings(str(bundle), steps=0, backend=options.backend)
        request_recording(registered(recordable_among(psutil.Process())), settings)
        watcher = Watcher(settings.pieces, 0, lambda _: None)
        if not watcher.wait(lambda: bool(watcher.ranks()), 20):
            raise SystemExit("the engine did not begin to record")
        print("recorded", flush=True)
        busy = watched(llm, engine, options)
        (settings.pieces / STOP_FILE).touch()
        watcher.wait(watcher.all_finished, 60)
        watcher.wait_for_engine()
        list(tokens(llm, engine, AFTER, options.request))
        print(f"after it: {private_mb(engine):.0f} MB")
        ends = np.array(sorted(piece_starts(settings.pieces))[1:], np.int64)
        print(f"{len(ends) + 1} pieces, {size_mb(settings.pieces):.0f} MB on disk")
        compare(idle, busy, ends)
        before = time.perf_counter()
        assembled = assemble(bundle, state="complete")
        took = time.perf_counter() - before
        print(f"bundle: {size_mb(assembled.path):.0f} MB, made in {took:.1f} s")
        paused = assembled.frame("steps", 0)["paused_ns"].to_numpy() / 1e6
        counted = paused[paused > 0]
        if len(counted):
            middle, most, nearly = (np.percentile(counted, part) for part in (50, 90, 99))
            print(
                f"as recorded: {len(counted)} pauses, {counted.sum() / 1e3:.1f} s in all; "
                f"median {middle:.1f}, p90 {most:.1f}, p99 {nearly:.1f}, max {counted.max():.1f} "
                f"ms, the first {counted[0]:.1f}; over 50 ms: {int((counted > 50).sum())}"
            )
        if not options.keep:
            shutil.rmtree(bundle)
        llm.llm_engine.engine_core.shutdown()
        sys.stdout.flush()


def started(model: str) -> Any:
    """The engine, when it can answer."""
    from vllm import LLM

    return LLM(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_num_seqs=4,
        enforce_eager=True,
        enable_prefix_caching=False,
    )


def engine_of() -> psutil.Process:
    """The process in which the model runs: this one's child that has most memory."""
    family = psutil.Process().children(recursive=True) or [psutil.Process()]
    return max(family, key=lambda process: int(process.memory_info().rss))


def tokens(llm: Any, engine: psutil.Process, steps: int, request: int) -> Iterator[Token]:
    """Generates so many tokens in requests one after the other; yields each as it comes."""
    from vllm import SamplingParams

    clock = Path(f"/proc/{engine.pid}/task/{engine.pid}/schedstat")
    inner, count = llm.llm_engine, 0
    while count < steps:
        sampling = SamplingParams(
            max_tokens=min(request, steps - count),
            ignore_eos=True,
            detokenize=False,
            temperature=0,
        )
        inner.add_request(str(time.time_ns()), {"prompt_token_ids": [7] * PROMPT}, sampling)
        while inner.has_unfinished_requests():
            if inner.step():
                count += 1
                yield Token(time.time_ns(), int(clock.read_text().split()[0]))


def watched(llm: Any, engine: psutil.Process, options: argparse.Namespace) -> list[Token]:
    """The tokens of so many steps; prints the memory ten times meanwhile."""
    first = private_mb(engine)
    generated: list[Token] = []
    memory_mb = [f"{first:.0f}"]
    for number, token in enumerate(tokens(llm, engine, options.steps, options.request), 1):
        generated.append(token)
        if number % max(1, options.steps // 10) == 0:
            memory_mb.append(f"{private_mb(engine):.0f}")
    print(f"  private memory, MB: {' '.join(memory_mb)}")
    print(f"  grown by {private_mb(engine) - first:+.1f} MB", flush=True)
    return generated


def private_mb(process: psutil.Process) -> float:
    """What the process does not share with others."""
    rows = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith("Private_")) / 1024


def piece_starts(pieces: Path) -> Iterator[int]:
    """When the first step of each piece began."""
    for path in pieces.glob("rank0.*.steps.npy"):
        yield int(np.load(path)["start_ns"][0])


def size_mb(folder: Path) -> float:
    """The size of all files below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def compare(idle: list[Token], busy: list[Token], ends: np.ndarray[Any, Any]) -> None:
    """Prints how far apart tokens came: not recorded, recorded, and with a piece between them."""
    at = np.array([token.at_ns for token in busy])
    place = np.searchsorted(at, ends)
    place = place[(place > 0) & (place < len(at))]
    with_piece = np.isin(np.arange(1, len(at)), place)
    print(
        "between two tokens, ms            median     p90     p99     max | thread's, median  max"
    )
    gaps, used = apart(idle)
    print_distribution("not recorded", gaps, used)
    gaps, used = apart(busy)
    print_distribution("recorded, no piece written", gaps[~with_piece], used[~with_piece])
    print_distribution("recorded, a piece written", gaps[with_piece], used[with_piece])
    usual, usually = np.median(gaps[~with_piece]), np.median(used[~with_piece])
    print_distribution(
        "  the pause: less the median", gaps[with_piece] - usual, used[with_piece] - usually
    )
    pauses = gaps[with_piece] - usual
    print(f"{len(pauses)} pauses, {pauses.sum() / 1e3:.1f} s of {gaps.sum() / 1e3:.1f} s in all")
    print(f"of more than 50 ms: {int((pauses > 50).sum())}; by the thread's own time: "
          f"{int((used[with_piece] - usually > 50).sum())}")  # fmt: skip


def apart(generated: list[Token]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Milliseconds from each token to the next, and what the engine's thread used of them."""
    rows = np.array([(token.at_ns, token.processor_ns) for token in generated])
    gaps, used = np.diff(rows, axis=0).T / 1e6
    return gaps, used


def print_distribution(name: str, gaps: np.ndarray[Any, Any], used: np.ndarray[Any, Any]) -> None:
    """Prints one line of the distribution."""
    if not len(gaps):
        print(f"{name:30} none")
        return
    middle, most, nearly = (np.percentile(gaps, part) for part in (50, 90, 99))
    print(f"{name:30} {middle:9.2f} {most:7.2f} {nearly:7.2f} {gaps.max():7.1f} | "
          f"{np.median(used):9.2f} {used.max():7.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
