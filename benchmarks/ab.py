"""What this project's kernels bring a live vLLM engine, case by case, beside what they have to.

Each case is one run of `spark-prof ab`, both sides in one engine, switched between steps: with
dummy weights in a model's real shapes, or with the trained model of tests/data/small-moe, whose
perplexity on held-out text then has to stay. Its result.json is kept as FOLDER/CASE.json. The
faulty kernels of tests/swaps/kernels must fail the gate, or leave the engine with vLLM's own one.

usage: python benchmarks/ab.py FOLDER [--cases CASE...] [--seconds S] [--both WORDS]
           [--options="--flag ..."] [--engine="--flag ..."]
       python benchmarks/ab.py FOLDER --show
exit code: 1 if a bar of what was measured is not reached
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import write_model  # noqa: E402
from spark_prof.ab.result import AbOutcome, Gate, SideComparison, decided, from_json  # noqa: E402

FAULTY = ROOT / "tests/swaps/kernels/faulty.py"
MOE_SLOTS = "moe=spark_prof,router=spark_prof,lm_head=spark_prof"
LAYER = "layer=spark_prof,o=spark_prof,lm_head=spark_prof"
EVERY = ",".join(f"{slot}=spark_prof!" for slot in ("moe", "router", "qkv", "o", "lm_head"))
EVERY_LAYER = ",".join(f"{slot}=spark_prof!" for slot in ("layer", "o", "lm_head"))
HYBRID = f"{EVERY},mlp=spark_prof!"
"""Of models with Mamba or GDN layers and shared experts: no engine's time was measured."""
BLOCKS = ",".join(f"{slot}=spark_prof!" for slot in ("layer", "qkv", "o", "mlp", "lm_head"))
TRITON_GDN = ("--additional-config", '{"gdn_prefill_backend": "triton"}')
"""Prompts by Triton's gated delta rule, which needs no FlashInfer."""
TRITON_EXPERTS = ("--moe-backend", "triton")
"""On Hopper vLLM 0.33 chooses FlashInfer's CUTLASS experts for FP8, which compile for longer than
330 s at the first start where FlashInfer's prebuilt kernels are not installed."""
TRAINED = ROOT / "tests/data/small-moe"
TEXT = ("--text", str(TRAINED / "held-out.txt"), "--gate-tokens", "384", "--no-record")
"""Of the trained model: 512 tokens a request with the 128 of its prompt, a window of that text."""
DUMMY = ("--max-model-len", "2048", "--load-format", "dummy")
ENGINE = ("--max-num-seqs", "16")
GRAPHS = '{"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}'
BOTH = "OMP_NUM_THREADS=1"
"""Of both sides: threads that torch keeps spinning on the host slow the one that prepares steps."""


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        model: a name of demo.models, or small-moe, quantized where a format follows it.
        b: what is swapped.
        bars: by batch size, the least gain in time per token.
        layers: of the model; 0 for all.
        ends: with exit code 1 where the gate has to fail, else 0.
        live: whether anything of side b has to run.
        engine: vLLM's options of both sides.
        gpus: that share the model.
    """

    model: str
    b: str
    bars: tuple[tuple[int, float], ...] = ()
    layers: int = 0
    ends: int = 0
    live: bool = True
    engine: tuple[str, ...] = ()
    gpus: int = 1

    @property
    def trained(self) -> bool:
        """Whether its weights are not random."""
        return self.model.startswith("small-moe")


def faulty(name: str, ends: int = 0, live: bool = True, model: str = "gpt-oss-20b") -> Case:
    """A kernel of tests/swaps/kernels in the experts of a model of four layers."""
    return Case(model, f"moe={FAULTY}:{name}", layers=4, ends=ends, live=live)


def trained(model: str, b: str = EVERY) -> Case:
    """Every kernel forced into the trained model, which is too small to gain by them."""
    return Case(model, b, ((1, 0.0), (8, 0.0)))


CASES = {
    "gpt-oss-20b": Case(
        "gpt-oss-20b", f"{MOE_SLOTS},qkv=spark_prof,o=spark_prof", ((1, 1.25), (8, 1.15))
    ),
    "gpt-oss-20b-quantized": Case(
        "gpt-oss-20b",
        "moe=spark_prof,router=spark_prof,qkv=mxfp4,o=mxfp4,lm_head=mxfp4",
        ((1, 1.45), (8, 1.15)),
    ),
    "qwen3-30b-a3b-nvfp4": Case(
        "qwen3-30b-a3b-nvfp4", f"{MOE_SLOTS},qkv=spark_prof,o=spark_prof", ((1, 1.4), (8, 1.15))
    ),
    # With the slot `layer`, as `tune` finds them; the bars are those of vLLM 0.33.
    "gpt-oss-20b-layer": Case("gpt-oss-20b", LAYER, ((1, 1.45), (8, 1.4))),
    "gpt-oss-20b-layer-quantized": Case(
        "gpt-oss-20b", "layer=mxfp4,o=mxfp4,lm_head=mxfp4", ((1, 1.45), (8, 1.4))
    ),
    "gpt-oss-120b-layer": Case("gpt-oss-120b", LAYER, ((1, 1.3), (8, 1.2))),
    "qwen3-30b-a3b-nvfp4-layer": Case("qwen3-30b-a3b-nvfp4", LAYER, ((1, 1.5), (8, 1.5))),
    "qwen3-30b-a3b-nvfp4-layer-tp2": Case("qwen3-30b-a3b-nvfp4", LAYER, ((1, 1.4),), gpus=2),
    "gpt-oss-20b-layer-tp2": Case("gpt-oss-20b", LAYER, ((1, 1.2),), gpus=2),
    "deepseek-v2-lite": Case(
        "deepseek-v2-lite", f"{MOE_SLOTS},qkv=spark_prof,o=spark_prof", ((1, 1.2), (8, 1.15))
    ),
    "llama-3.1-8b-fp8": Case(
        "llama-3.1-8b-fp8",
        "qkv=spark_prof,o=spark_prof,mlp=spark_prof,lm_head=spark_prof",
        ((1, 1.0), (8, 1.0)),
    ),
    # Without experts: no engine's time was measured, so that it is insisted on.
    "llama-3.1-8b-fp8-layer": Case(
        "llama-3.1-8b-fp8",
        "layer=spark_prof!,o=spark_prof!,lm_head=spark_prof!",
        ((1, 1.35), (8, 1.3)),
    ),
    "nemotron-3-nano-fp8": Case(
        "nemotron-3-nano-fp8", HYBRID, ((1, 1.35), (8, 1.3)), engine=TRITON_EXPERTS
    ),
    "nemotron-3-nano-fp8-layer": Case(
        "nemotron-3-nano-fp8", BLOCKS, ((1, 1.35), (8, 1.3)), engine=TRITON_EXPERTS
    ),
    "qwen3-next-80b-a3b-nvfp4": Case(
        "qwen3-next-80b-a3b-nvfp4", HYBRID, ((1, 1.35), (8, 1.3)), layers=12, engine=TRITON_GDN
    ),
    # Norm, router and experts as one: attention of these is vLLM's own.
    "deepseek-v2-lite-layer": Case("deepseek-v2-lite", BLOCKS, ((1, 1.35), (8, 1.3))),
    "qwen3-next-80b-a3b-nvfp4-layer": Case(
        "qwen3-next-80b-a3b-nvfp4", BLOCKS, ((1, 1.35), (8, 1.3)), layers=12, engine=TRITON_GDN
    ),
    "doubled-scale": faulty("doubled_scale", ends=1),
    "swapped-expert": faulty("swapped_expert", ends=1),
    "throws": faulty("throws_at_call", ends=2, live=False),
    "out-of-memory": faulty("allocates_at_call", ends=2, live=False),
    "hangs": faulty("hangs"),
    "small-moe": trained("small-moe"),
    "small-moe-nvfp4": trained("small-moe-nvfp4"),
    "small-moe-mxfp4": trained("small-moe-mxfp4"),
    "small-moe-fp8": trained("small-moe-fp8"),
    "small-moe-nvfp4-layer": trained("small-moe-nvfp4", EVERY_LAYER),
    "small-moe-mxfp4-layer": trained("small-moe-mxfp4", EVERY_LAYER),
    "small-moe-doubled-scale": faulty("doubled_scale", ends=1, model="small-moe-nvfp4"),
    "small-moe-swapped-expert": faulty("swapped_expert", ends=1, model="small-moe-mxfp4"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=tuple(CASES))
    parser.add_argument("--both", default=BOTH, help="what both sides have, such as a variable")
    parser.add_argument("--seconds", default="20", help="for each measurement")
    parser.add_argument("--options", default="", help="more options of spark-prof ab")
    parser.add_argument("--engine", default="", help="more options of vLLM")
    parser.add_argument("--no-bars", action="store_true", help="times decide nothing")
    parser.add_argument("--show", action="store_true", help="run nothing, print all that is there")
    options = parser.parse_args()
    if options.show:
        verdicts = [show_result(path) for path in sorted(options.folder.glob("*.json"))]
        return int(not all(verdicts))
    options.folder.mkdir(parents=True, exist_ok=True)
    reached = True
    for name in options.cases:
        path = options.folder / f"{name}.json"
        ab_options = [*side_options(options.both, name), *shlex.split(options.options)]
        code = run(name, path, options.seconds, ab_options, shlex.split(options.engine))
        if path.exists():
            reached &= show_result(path, code, bars=not options.no_bars)
    return int(not reached)


def show_result(path: Path, code: int | None = None, *, bars: bool = True) -> bool:
    """Prints the figures of a result beside the bars of its case; whether all are reached.

    Args:
        path: whose name begins with that of the case.
        code: what the run ended with, where that is known.
        bars: whether times are held to them.
    """
    case = max((name for name in CASES if path.stem.startswith(name)), key=len)
    lines = list(
        figure_lines(CASES[case], from_json(path.read_bytes(), str(path)), code, bars=bars)
    )
    for line, good in lines:
        print(f"{path.stem}: {line}{'' if good else '  NOT REACHED'}", flush=True)
    return all(good for _, good in lines)


def run(name: str, path: Path, seconds: str, ab_options: list[str], engine: list[str]) -> int:
    """Runs one case and keeps its result; the exit code of `spark-prof ab`.

    Args:
        name: of the case.
        path: where the result goes; the engines' logs go beside it.
        seconds: for each measurement.
        ab_options: of `spark-prof ab`.
        engine: options of vLLM.
    """
    case = CASES[name]
    with tempfile.TemporaryDirectory() as temporary:
        model = model_folder(case, Path(temporary) / case.model)
        sizes = ",".join(str(size) for size, _ in case.bars) or "1"
        command = [
            *(sys.executable, "-m", "spark_prof.cli.main", "ab"),
            *("--batch-sizes", sizes, "--prefill", "none", "--seconds", seconds),
            *(TEXT if case.trained else ()),
            *("-o", str(Path(temporary) / "run"), *ab_options),
            *("--", str(model), *ENGINE, *(() if case.trained else DUMMY)),
            *(("--tensor-parallel-size", str(case.gpus)) if case.gpus > 1 else ()),
            *("--compilation-config", GRAPHS, *case.engine, *engine),
        ]
        result = Path(temporary) / "run/result.json"
        try:
            return exit_code_of(command)
        finally:
            if result.exists():
                shutil.copy(result, path)
            for log in result.parent.glob("*.log"):
                shutil.copy(log, path.with_name(f"{path.stem}-{log.name}"))


def exit_code_of(command: Sequence[str]) -> int:
    """Runs a command, which at Ctrl-C has as long as it takes to end.

    Killed in the meantime, as subprocess.run would do it, spark-prof could not end its engines.
    """
    child = subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr)
    try:
        return child.wait()
    finally:
        child.wait()


def side_options(words: str, name: str) -> list[str]:
    """The options that say what the sides are."""
    b = CASES[name].b
    return ["--a", words, "--b", f"{words},{b}"] if words else ["--b", b]


def model_folder(case: Case, folder: Path) -> Path:
    """The folder of a case's model, which is made where it is not in the repository."""
    if case.model == "small-moe":
        return TRAINED
    if case.trained:
        from tests.small_moe.quantize import write

        return write(case.model.rpartition("-")[2], folder)
    write_model(case.model, folder)
    if case.layers:
        cut(folder / "config.json", case.layers)
    return folder


def cut(config: Path, layers: int) -> None:
    """Makes a model of fewer layers."""
    value = json.loads(config.read_text(encoding="utf-8"))
    value["num_hidden_layers"] = layers
    if "layer_types" in value:
        value["layer_types"] = value["layer_types"][:layers]
    config.write_text(json.dumps(value), encoding="utf-8")


def figure_lines(
    case: Case, result: AbOutcome, code: int | None, *, bars: bool = True
) -> Iterator[tuple[str, bool]]:
    """Each figure with its bar, and whether that is reached."""
    if code is not None:
        yield f"exit code {code}, {result.failure or 'done'}", code == case.ends
    live = [swap for rank in result.swaps for swap in rank.swaps if swap.live]
    yield f"{len(live)} layers swapped", bool(live) == case.live
    if case.ends:
        return
    for gate in result.gates:
        figures = gate.verdict.figures
        kl = "" if figures is None else f", KL {figures.kl_mean} nats at most {figures.kl_worst}"
        agreement = "" if figures is None else f", agreement {figures.agreement}"
        yield f"gate at batch {gate.requests}{agreement}{kl}", gate.verdict.passed
        if case.trained:
            yield perplexity(gate)
    for run in result.aa:
        gain = run.test.estimate.gain
        small = gain is not None and gain.half_width <= 0.005
        # Another capture of the same kernels may differ a little, steadily.
        good = small and (run.test.passed or run.captured_again)
        yield f"A/A at batch {run.requests}: {run.test.line}", good or not bars
    least = dict(case.bars) if bars else {}
    for run_ in result.runs:
        yield timed(run_, least.get(run_.requests))
        if (gain := run_.device_gain) is not None:
            yield (
                f"device alone at batch {run_.requests}: {run_.device_a_us:.1f} to "
                f"{run_.device_b_us:.1f} us, gain {gain.value:.4f} "
                f"({gain.low:.4f} to {gain.high:.4f})",
                True,
            )
    for attribution in result.attributions:
        verdicts = {True: "adds up", False: "does not add up", None: "cannot be checked"}
        yield (
            f"attribution at batch {attribution.batch_size} {verdicts[attribution.adds_up]}: "
            f"components save {attribution.explained_us:.1f} us of {attribution.gain_us}, "
            f"residual {attribution.residual_us}",
            bool(attribution.adds_up),
        )
        moved = ", ".join(row.component for row in attribution.moved) or "nothing"
        yield f"untouched components that moved 1 % or more: {moved}", not attribution.moved
        all_ran = all(proof.ran == "ran" for proof in attribution.proofs)
        yield "every replacement ran in every layer that it claims", all_ran


def perplexity(gate: Gate) -> tuple[str, bool]:
    """The perplexities of both sides; whether enough was compared that is no near tie."""
    figures, floor = gate.verdict.figures, gate.verdict.floor
    if not (figures and figures.text and floor and floor.text):
        return f"no perplexity at batch {gate.requests}", False
    swapped, rounded = figures.text, floor.text
    text = (
        f"perplexity at batch {gate.requests}: {swapped.perplexity_a:.4f} stock, "
        f"{swapped.perplexity_b:.4f} swapped, {rounded.perplexity_b:.4f} stock rounded "
        f"({swapped.extra_nats:+.5f} and {rounded.extra_nats:+.5f} nats a token, standard errors "
        f"{swapped.error:.5f} and {rounded.error:.5f})"
    )
    return text, decided(figures)


def timed(run: SideComparison, bar: float | None) -> tuple[str, bool]:
    """One measurement beside its bar."""
    estimate = run.estimate
    if estimate.a_us is None or estimate.b_us is None:
        return f"{run.phase} {run.requests}: {estimate.missing}", bar is None
    value = estimate.gain.value if estimate.gain else estimate.a_us / estimate.b_us
    # One start a side has no interval.
    interval = (
        f"{estimate.gain.low:.4f} to {estimate.gain.high:.4f}"
        if estimate.gain
        else estimate.missing
    )
    label = f"batch {run.requests}" if run.phase == "decode" else f"prefill {run.prompt_tokens}"
    text = f"{label}: {estimate.a_us:.1f} to {estimate.b_us:.1f} us, gain {value:.4f} ({interval})"
    if bar is None or run.phase != "decode":
        return text, True
    return f"{text}, bar {bar}", value >= bar


if __name__ == "__main__":
    sys.exit(main())
