"""What counters cost, and whether they are right: bytes read from DRAM against weight bytes.

Starts one engine. First it is recorded with kernels and counters: the bytes that each component's
kernels read in a decode step are set against the weights that the step needs. Then stretches of
decode steps alternate with and without sampling, nothing else being recorded: the ratio of their
times per token is what counters alone cost. Bars: ratios of lm_head and experts within 10 %, cost
at most 1.01. Writes OUT/result.json and the bundle OUT/bundle.

usage: python benchmarks/counters_truth.py MODEL_FOLDER --out OUT [--memory 0.8] [--cupti-lib DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

TRUTH, COST = 0.10, 1.01
PIECE_STEPS, STEPS, WARM_UP = 64, 512, 64
STRETCHES, STRETCH_TOKENS = 20, 12
INTERVAL_NS, BUFFER_BYTES = 2_000, 1024 << 20
MOST_ROUNDS = 30


def main() -> None:
    """Runs the outer part, which records the inner one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--memory", type=float, default=0.8)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--cupti-lib", default="", help="folder of a libcupti 13.4 or newer")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options)
    else:
        outside(options)


def outside(options: argparse.Namespace) -> None:
    """Records the engine and reads the bundle."""
    from spark_prof.analyzers.summary import summarize
    from spark_prof.profiler.launcher import record
    from spark_prof.profiler.settings import Settings

    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if options.cupti_lib:
        old = os.environ.get("LD_LIBRARY_PATH", "")
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [options.cupti_lib, old]))
    settings = Settings(
        str(options.out.absolute() / "bundle"), steps=STEPS, warmup_steps=WARM_UP,
        decode_only=True, steps_per_piece=PIECE_STEPS, counters=True,
    )  # fmt: skip
    bundle, code = record([sys.executable, *sys.argv, "--inside"], settings, say)
    report = summarize(bundle)
    counters = asdict(report.counters) if report.counters else None
    overhead = options.out / "overhead.json"
    result: dict[str, Any] = {
        "model": report.run.model,
        "gpu": report.gpu.name,
        "execution": report.run.execution,
        "exit_code": code,
        "notes": report.notes,
        "overhead": json.loads(overhead.read_text()) if overhead.exists() else None,
        "counters": counters,
    }
    rows = report.counters.batches if report.counters else ()
    ratios = [(b.tokens, w) for b in rows for w in b.weights]
    result["ratios"] = {f"{tokens} {w.component}": w.ratio for tokens, w in ratios}
    (options.out / "result.json").write_text(json.dumps(result, indent=1))
    for note in (*report.notes, *(report.counters.notes if report.counters else ())):
        say(f"note: {note}")
    for batch in rows:
        say(
            f"batch of {batch.tokens}: {batch.steps} steps folded, lag {batch.lag_us:.2f} us, "
            f"conserved {batch.conserved:.4f}"
        )
        for row in batch.rows[:24]:
            read = f"{row.read_bytes / 1e6:9.3f} MB" if row.read_bytes is not None else "-"
            error = f"{row.read_error / 1e6:.3f}" if row.read_error is not None else "-"
            rate = f"{row.bandwidth / 1e12:.2f} TB/s" if row.bandwidth is not None else "-"
            call = f"{row.us:8.2f} us x {row.calls:4.0f}"
            say(f"  {call} {read} ± {error} {rate:>9} {row.component:10} {row.name[:60]}")
    missed = not ratios
    for tokens, weight in ratios:
        checked = weight.component in ("lm_head", "experts")
        bad = checked and abs(weight.ratio - 1) > TRUTH
        missed |= bad
        say(
            f"{weight.component} at {tokens} tokens: read {weight.read_bytes / 1e6:.1f} MB a step, "
            f"weights {weight.weight_bytes / 1e6:.1f} MB {weight.part}: {weight.ratio:.3f}"
            + (" MISSED" if bad else "")
        )
    cost = (result["overhead"] or {}).get("ratio")
    say(f"cost of counters alone: {cost} (bar {COST})")
    sys.exit(1 if missed or cost is None or cost > COST else 0)


def inside(options: argparse.Namespace) -> None:
    """The engine: batches until the recording is done, then stretches with and without counters."""
    from vllm import LLM

    engine: dict[str, Any] = {}
    if not options.eager:
        sizes = sorted({1, 2, 4, options.batch})
        engine["compilation_config"] = {"cudagraph_capture_sizes": sizes}
    llm = LLM(
        model=options.model, load_format="dummy", skip_tokenizer_init=True, max_model_len=1024,
        max_num_seqs=max(4, options.batch), gpu_memory_utilization=options.memory,
        enforce_eager=options.eager, enable_prefix_caching=False, disable_log_stats=False,
        **engine,
    )  # fmt: skip
    say("the engine runs; recording")
    for number in range(MOST_ROUNDS):
        took = stretch(llm, options.batch, 200)
        say(f"round {number}: {took * 1e3:.3f} ms per token")
        if bundle_written(options.out, 2.0):
            break
    bundle_written(options.out, 60.0)
    measure(options, llm)


def bundle_written(out: Path, seconds: float) -> bool:
    """Waits until the bundle is there and its pieces are gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (out / "bundle" / "meta.json").exists() and not (out / "bundle" / "pieces").exists():
            return True
        time.sleep(0.1)
    return False


def measure(options: argparse.Namespace, llm: Any) -> None:
    """Alternates stretches with and without sampling and writes what they took."""
    import torch

    from spark_prof.profiler.counters import METRICS, SETS, CounterError, PmSampling

    if not torch.cuda.is_available():
        say("there is no NVIDIA GPU: what counters cost cannot be measured")
        return
    metrics = [METRICS[name][0] for name in SETS[0]]
    result: dict[str, Any] = {"interval_ns": INTERVAL_NS, "sampled_whole": 0}
    times: dict[str, list[float]] = {"without": [], "with": []}
    try:
        for number in range(STRETCHES):
            # Which kind comes first changes, so that a drift of the clocks falls on both.
            for kind in ("without", "with") if number % 2 else ("with", "without"):
                if kind == "without":
                    times[kind].append(stretch(llm, options.batch, STRETCH_TOKENS))
                    continue
                counters = PmSampling(torch.cuda.current_device())
                counters.configure(metrics, INTERVAL_NS, BUFFER_BYTES)
                counters.start()
                times[kind].append(stretch(llm, options.batch, STRETCH_TOKENS))
                counters.stop()
                samples = counters.read(256)
                counters.close()
                # Without an overflow everything up to the end was sampled, although it is not read.
                result["sampled_whole"] += not samples.overflowed and len(samples.start_ns) > 200
            if number % 5 == 4:
                say(f"stretch {number + 1} of {STRETCHES}")
    except CounterError as error:
        result["refused"] = str(error)
        say(f"counters: {error}")
    result |= times
    if result["sampled_whole"] == STRETCHES:
        base, half = times["without"], STRETCHES // 2
        result["ratio"] = statistics.median(times["with"]) / statistics.median(base)
        result["pairs"] = [a / b for a, b in zip(times["with"], base, strict=True)]
        result["noise"] = statistics.median(base[:half]) / statistics.median(base[half:])
        say(f"with counters over without: {result['ratio']:.4f}, noise {result['noise']:.4f}")
    else:
        say(f"only {result['sampled_whole']} of {STRETCHES} stretches were sampled to their end")
    (options.out / "overhead.json").write_text(json.dumps(result, indent=1))


def stretch(llm: Any, batch: int, tokens: int) -> float:
    """Seconds per decode step of one batch, by the engine's clock."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, temperature=0)
    prompts = [{"prompt_token_ids": list(range(3, 3 + 128))} for _ in range(batch)]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    metrics = [output.metrics for output in outputs]
    first = max(m.first_token_ts for m in metrics)
    last = max(m.last_token_ts for m in metrics)
    return float((last - first) / (tokens - 1))


def say(line: str) -> None:
    """Shows one line of progress."""
    print(f"counters_truth: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
