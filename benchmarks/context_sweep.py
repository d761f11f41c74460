"""What context costs a decode step, against the bytes that it reads: 1 k to 64 k tokens.

One engine with random weights in a model's real shapes decodes at each context, and one recording
has all of it: for each kind of layer the slope of attention's time per 1,000 tokens stands beside
the time in which its bytes are read. With --counters the shortest and the longest context are
recorded once more with the GPU's hardware counters: the bytes that attention's kernels really read
grow by so many a token, which has to be what the bound counts, within 10 %.

usage: python benchmarks/context_sweep.py [--model gpt-oss-20b] [--contexts 1024,8192,32768,65536]
           [--batch 1] [--steps 96] [--counters] [--bandwidth GBS] [--engine JSON] [--keep FOLDER]

    python benchmarks/context_sweep.py --model tiny-dense --contexts 256,1024,3072 --steps 48
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import write_model  # noqa: E402
from spark_prof import load  # noqa: E402
from spark_prof.analyzers.context.context_rows import ContextCost  # noqa: E402
from spark_prof.analyzers.model import Report  # noqa: E402
from spark_prof.analyzers.summary import summarize  # noqa: E402
from spark_prof.dashboards.sections.context_section import line  # noqa: E402

BAR = 0.1
WARM = 8  # tokens of a first generation at each context, in which kernels are compiled
ENGINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
}


def main() -> int:
    """Records the sweep and prints slope against bound; 1 where the counters miss the bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="gpt-oss-20b")
    parser.add_argument("--contexts", default="1024,8192,32768,65536")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=96, help="decode steps at each context")
    parser.add_argument("--counters", action="store_true", help="an NVIDIA GPU is needed")
    parser.add_argument("--bandwidth", type=float, help="of the bound in GB/s, where none is known")
    parser.add_argument("--engine", default="{}", help="further arguments of vllm.LLM, as JSON")
    parser.add_argument("--keep", type=Path, help="a folder for the recordings")
    parser.add_argument("--decode", help=argparse.SUPPRESS)
    parser.add_argument("--longest", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    contexts = sorted({int(text) for text in options.contexts.split(",")})
    options.longest = options.longest or contexts[-1]
    if options.decode:
        decode(options.decode, contexts, options)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model = write_model(options.model, folder / "model")
        report = recorded(folder / "sweep", model, contexts, options)
        show(report, options.bandwidth)
        if not options.counters:
            return 0
        read = {
            context: attention_bytes(
                recorded(folder / f"counters-{context}", model, [context], options, "--counters")
            )
            for context in (contexts[0], contexts[-1])
        }
        return compare(report, read)


def recorded(
    bundle: Path,
    model: Path,
    contexts: Sequence[int],
    options: argparse.Namespace,
    *record_options: str,
) -> Report:
    """The report of a recording in which an engine decodes at these contexts, all steps of it."""
    program = [
        *(sys.executable, __file__, f"--decode={model}", f"--batch={options.batch}"),
        *(f"--steps={options.steps}", f"--engine={options.engine}"),
        f"--contexts={','.join(map(str, contexts))}",
        # One length for all engines: vLLM 0.33 ended with an illegal access in the warm-up of one
        # that was shorter than the tokens of a batch.
        f"--longest={options.longest}",
    ]
    record = [
        sys.executable,
        "-m",
        "spark_prof.cli.main",
        "record",
        "--steps",
        "0",
        *record_options,
    ]
    whole = () if record_options else ("--duty-cycle", "1/1")
    command = [*record, *whole, "-o", str(bundle), "--", *program]
    subprocess.run(command, env=os.environ | ENGINE, check=True)
    return summarize(load(bundle))


def decode(model: str, contexts: Sequence[int], options: argparse.Namespace) -> None:
    """The engine: each context twice, first for what is compiled there."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model, load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False,
        max_model_len=options.longest + options.steps + 16, max_num_seqs=options.batch,
        disable_log_stats=True, seed=1, **json.loads(options.engine),
    )  # fmt: skip
    for context in contexts:
        prompt = {"prompt_token_ids": [(7 * place) % 190 + 5 for place in range(context)]}
        for tokens in (WARM, options.steps):
            sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False)
            llm.generate([prompt] * options.batch, sampling, use_tqdm=False)


def show(report: Report, gigabytes: float | None) -> None:
    """Prints the slope of each kind of layer beside the bound of its bytes."""
    cost = report.context
    print(f"{report.run.model} on {report.gpu.name}")
    if cost is None or cost.why_not:
        print(f"not told: {cost.why_not if cost else 'no decode step'}")
        return
    print(
        f"{cost.steps} decode steps at batch {cost.batch}, {cost.shortest:,.0f} to "
        f"{cost.longest:,.0f} tokens of context"
    )
    print(line(report) or "what a sequence loses is not told: the steps scatter")
    bandwidth = cost.bandwidth or (1e9 * gigabytes if gigabytes else None)
    for kind in cost.kinds:
        if kind.slope_us is None or kind.slope_low_us is None or kind.slope_high_us is None:
            print(f"{kind.kind}: {kind.us:.1f} us a step; no slope: {kind.why_not}")
            continue
        bound = "bound not known"
        if bandwidth:
            bound_us = 1e9 * kind.bytes_per_token / bandwidth
            share = f", {100 * bound_us / kind.slope_us:.1f} % of the slope" if kind.grows else ""
            bound = f"bound {bound_us:.3f} us at {bandwidth / 1e9:,.0f} GB/s{share}"
        print(
            f"{kind.kind} ({kind.layers} layers): {kind.base_us:.1f} us + {kind.slope_us:.3f} us "
            f"for 1,000 tokens (95 % {kind.slope_low_us:.3f} to {kind.slope_high_us:.3f}), off by "
            f"{100 * (kind.off or 0):.1f} %; {kind.bytes_per_token:,.0f} bytes a token, {bound}"
        )


def attention_bytes(report: Report) -> float | None:
    """What attention's kernels really read in a decode step, by the counters."""
    batches = report.counters.batches if report.counters else ()
    for batch in batches[:1]:
        rows = [row for row in batch.rows if row.component == "attention"]
        if rows and all(row.read_bytes is not None for row in rows):
            return sum((row.read_bytes or 0.0) * row.calls for row in rows)
    return None


def compare(report: Report, read: Mapping[int, float | None]) -> int:
    """Prints by how many bytes a token what was read grows, against what the bound counts."""
    sizes: list[tuple[int, float]] = [(at, size) for at, size in read.items() if size is not None]
    cost: ContextCost | None = report.context
    if len(sizes) < 2 or cost is None or not cost.kinds:
        print("counters: attention's bytes are not known at two contexts")
        return 1
    (low, least), (high, most) = sizes[0], sizes[-1]
    grown = (most - least) / (high - low)
    model = sum(kind.bytes_per_token for kind in cost.kinds)
    ratio = grown / model if model else 0.0
    for context, size in sizes:
        print(f"counters: {size / 1e6:,.1f} MB of attention in a step at {context:,} tokens")
    print(f"counters: {grown:,.0f} bytes a token, the bound counts {model:,.0f}: {ratio:.3f} x")
    time_us = sum(kind.slope_us or 0.0 for kind in cost.kinds)
    if time_us > 0:
        print(f"what attention reads grows at {grown / time_us:,.0f} GB/s")
    return 0 if abs(ratio - 1) <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
