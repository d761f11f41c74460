"""Records a small vLLM run, on a GPU where there is one and else on the CPU, and reports it.

The model has random weights, so that nothing is downloaded. Everything lies in demo-output/
afterwards. Where vLLM does not run, a capture that comes with the sources is reported instead.

usage: python -m demo
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import deque
from importlib.util import find_spec
from pathlib import Path

import psutil

from demo.models import write_model

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "demo-output"
CAPTURE = ROOT / "tests" / "data" / "h100-gpt-oss-20b-mxfp4-eager"
SPARK_PROF = [sys.executable, "-m", "spark_prof.cli.main"]
OURS = "spark-prof: "
BATCH, PROMPT, TOKENS, ROUNDS = 2, 32, 24, 2
LARGE_GIB, LARGE_SHARE_GIB, SMALL_SHARE_GIB = 20, 18, 4


def main() -> int:
    """Runs the demo; returns the exit code."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir()
    bundle = record() if find_spec("vllm") else None
    failed = bundle is None and find_spec("vllm") is not None
    if bundle is None:
        if not find_spec("vllm"):
            reason = Path(sys.prefix, "no-vllm")
            why = reason.read_text().strip() if reason.exists() else "run make demo to install it"
            say(f"vLLM is not installed ({why})")
        say(f"showing a recording that comes with spark-prof instead: {path_text(CAPTURE)}")
        bundle = CAPTURE
    say(f"spark-prof report {path_text(bundle)}")
    print(flush=True)
    page = OUTPUT / "report.html"
    text = subprocess.run([*SPARK_PROF, "report", path_text(bundle)], cwd=ROOT)
    html = subprocess.run(
        [*SPARK_PROF, "report", path_text(bundle), "--out", path_text(page)],
        cwd=ROOT,
        capture_output=True,
    )
    if text.returncode or html.returncode:
        sys.stderr.buffer.write(html.stderr)
        return 1
    say(f"the same report, with charts, is in {path_text(page)}")
    return 1 if failed else 0


def record() -> Path | None:
    """Records the workload; None where that failed, after saying why."""
    gpu = gpu_memory()
    on_gpu = gpu is not None
    name, options = "tiny-moe", []
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    if gpu is None:
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    else:
        free, total = gpu
        share = SMALL_SHARE_GIB
        if free >= LARGE_GIB:
            name, share = "gpt-oss-20b", LARGE_SHARE_GIB
        options = ["--memory", f"{min(0.9, share / total):.3f}"]
        if not find_spec("flashinfer"):
            environment.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    model = write_model(name, OUTPUT / name)
    bundle, log = OUTPUT / "bundle", OUTPUT / "vllm.log"
    workload = [
        sys.executable, "-m", "demo.workload", path_text(model), *options,
        "--batch", str(BATCH), "--prompt", str(PROMPT),
        "--tokens", str(TOKENS), "--rounds", str(ROUNDS),
    ]  # fmt: skip
    # The first round warms up: kernels are compiled then, and caches filled.
    ours = ["record", "--steps", "0", "--warmup-steps", str(TOKENS), "--out", path_text(bundle)]
    say(f"recording vLLM on the {'GPU' if on_gpu else 'CPU'} with a {name} model of random weights")
    say(f"that takes 1 to 3 minutes; vLLM's own log goes to {path_text(log)}")
    if run_logged([*SPARK_PROF, *ours, "--", *workload], environment, log) == 0:
        return bundle
    print("".join(deque(log.open(errors="replace"), 15)), end="", file=sys.stderr)
    say(f"the recording failed; the lines above are the end of {path_text(log)}")
    return None


def run_logged(command: list[str], environment: dict[str, str], log: Path) -> int:
    """Runs the command; spark-prof's lines go to the terminal, all others into the log."""
    child = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert child.stdout is not None
    with log.open("w") as file:
        try:
            for line in child.stdout:
                print(line, end="", flush=True, file=None if line.startswith(OURS) else file)
            return child.wait()
        except KeyboardInterrupt:  # the child got it as well and ends by itself
            child.wait()
            raise


def gpu_memory() -> tuple[float, float] | None:
    """Free and total memory of the first GPU in GiB; None where there is no GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if process.returncode or not process.stdout.strip():
        return None
    try:
        free, total = (float(word) / 1024 for word in process.stdout.splitlines()[0].split(","))
    except ValueError:  # GPU and processor share one memory, of which nvidia-smi says nothing
        memory = psutil.virtual_memory()
        free, total = memory.available / 2**30, memory.total / 2**30
    return free, total


def path_text(path: Path) -> str:
    """The path as a person in the repository would write it."""
    return str(path.relative_to(ROOT))


def say(line: str) -> None:
    """Shows one line."""
    print(f"demo: {line}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        sys.exit(130)
