"""Every kernel's owner across vLLM's architectures: FULL CUDA graphs against an eager run.

For each row of architecture_table.py two recordings are made, with random weights: eager, with a
range around every module, and as vLLM runs by default (torch.compile and CUDA graphs). The owners
of the kernels of a decode step at batch 1 are compared node by node (architecture_compare.py).
Results go to a JSON lines file, a line an architecture as soon as it is done; --write-docs makes
benchmarks/results/architectures/README.md of it.

With --models, folders with a config.json take the table's place: any model, whole. They are
recorded one after the other, since they need the GPU's memory.

usage: python -m benchmarks.architectures [-o architectures.jsonl] [--at-once 4] [--only NAME,NAME]
           [--models FOLDER,FOLDER] [--skip-recorded] [--small] [--keep FOLDER]
           [--stop-after SECONDS] [--write-docs benchmarks/results/architectures/README.md]

On a GPU host: python -m benchmarks.architectures --at-once 4 -o $OUT/architectures.jsonl

Exit code: 0 where nothing is wrong, 1 where something is, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.architecture_compare import compare, decode_step
from benchmarks.architecture_results import Result, page_of, read_results
from benchmarks.architecture_table import ARCHITECTURES, Architecture, config_of, of_folder
from spark_prof import report
from spark_prof.traces.bundle import META_FILE, Bundle

ROOT = Path(__file__).resolve().parents[1]
ON_GPU = Path("/dev/nvidiactl").exists()
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES", "")
DEVICES = tuple(int(number) for number in VISIBLE.split(",") if number.isdecimal()) or tuple(
    sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*"))
)
"""The GPUs of this host that may be used, over which the engines are spread."""
APART_S = 4.0
"""Between two starts on a GPU, so that they do not all read the same files at once."""
CACHE_BYTES = 1 << 30
"""Of the KV cache. With a fixed size vLLM does not measure free memory while it starts, which
fails where another engine starts or ends meanwhile."""
MEMORY_SHARE = 0.1
"""Of the GPU's memory that must be free at a start; with a fixed cache it limits nothing."""
PROMPT, TOKENS, ROUNDS = 32, 8, 2
DRAFTER = "drafter"  # folder of a drafter's config.json, in its model's
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Compiles a kernel for every number of tokens that may come; a decode step needs one.
    "VLLM_DEEP_GEMM_WARMUP": "skip",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
_ERROR = re.compile(r"((?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)): (.*)")


class Engines:
    """Starts engines, `apart` seconds apart, and ends what is left of them."""

    def __init__(self, apart: float) -> None:
        self._apart = apart
        self._lock = threading.Lock()
        self._next = 0.0
        self._running: set[int] = set()

    def run(self, command: Sequence[str], log: Path, limit: float, **variables: str) -> int | None:
        """Runs the command when it is its turn.

        Returns:
            Its exit code, None where it was killed after `limit` seconds.
        """
        with self._lock:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + self._apart
        time.sleep(at - now)
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                cwd=ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process.pid)
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                # Nobody else may find the GPU's memory taken.
                _kill(process.pid)
                process.wait()
                self._running.discard(process.pid)

    def end(self) -> None:
        """Kills every engine that runs."""
        for group in list(self._running):
            _kill(group)


class Devices:
    """The GPU with the fewest engines; a host without one has the device ""."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._engines = {str(device): 0 for device in devices} or {"": 0}
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[str]:
        """The GPU that an engine may use meanwhile, as CUDA_VISIBLE_DEVICES names it."""
        with self._lock:
            device = min(self._engines, key=self._engines.__getitem__)
            self._engines[device] += 1
        try:
            yield device
        finally:
            with self._lock:
                self._engines[device] -= 1


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Records and compares what the command line asks for; returns the exit code."""
    options = _options(arguments)
    rows = [of_folder(folder) for folder in options.models] or [
        row for row in ARCHITECTURES if not options.only or row.name in options.only
    ]
    recorded = read_results(options.out)
    if options.skip_recorded:
        rows = [row for row in rows if row.name not in recorded]
    if options.write_docs:
        rows = []
    engines = Engines(APART_S / max(1, len(DEVICES)) if ON_GPU else 0.0)
    devices = Devices(DEVICES)
    until = time.monotonic() + options.stop_after
    at_once = 1 if options.models else options.at_once
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(at_once) as pool:
        folder = options.keep or Path(temporary)
        jobs = [
            pool.submit(_one, row, folder / row.name, options, engines, devices, until)
            for row in rows
        ]
        try:
            for job in as_completed(jobs):
                if result := job.result():
                    recorded[result.name] = result
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(result)) + "\n")
                    print(_line(result), flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            engines.end()
            raise
    if options.write_docs:
        options.write_docs.write_text(page_of(in_order(recorded)), encoding="utf-8")
    return 0 if all(result.right for result in recorded.values()) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("architectures.jsonl"))
    parser.add_argument(
        "--at-once", type=int, default=1, help="engines beside one another, over all GPUs"
    )
    parser.add_argument("--only", type=_names, default=(), help="names of the table, by commas")
    parser.add_argument("--models", type=_folders, default=(), help="folders with a config.json")
    parser.add_argument("--skip-recorded", action="store_true", help="leave out what OUT has")
    parser.add_argument("--small", action="store_true", help="smaller matrices, for a CPU")
    parser.add_argument(
        "--keep",
        type=Path,
        help="leave the recordings in this folder, and take those that are there",
    )
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one engine")
    parser.add_argument(
        "--stop-after", type=float, default=float("inf"), help="seconds; begin no further one then"
    )
    parser.add_argument(
        "--write-docs", type=Path, metavar="PAGE", help="only write the page, from OUT"
    )
    options = parser.parse_args(arguments)
    if options.at_once < 1:
        parser.error("--at-once is at least 1")
    if options.write_docs and not options.out.exists():
        parser.error(f"{options.out} does not exist")
    return options


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = set(names) - {row.name for row in ARCHITECTURES}
    if unknown:
        raise argparse.ArgumentTypeError(f"no such architecture: {', '.join(sorted(unknown))}")
    return names


def _folders(text: str) -> tuple[Path, ...]:
    folders = tuple(Path(name).absolute() for name in text.split(","))
    if absent := [str(folder) for folder in folders if not (folder / "config.json").is_file()]:
        raise argparse.ArgumentTypeError(f"no config.json in {', '.join(absent)}")
    return folders


def in_order(results: dict[str, Result]) -> list[Result]:
    """The table's results as the table has them, then those of whole models by name."""
    names = [row.name for row in ARCHITECTURES]
    whole_models = sorted(results.keys() - set(names))
    return [results[name] for name in (*names, *whole_models) if name in results]


def _one(
    row: Architecture,
    folder: Path,
    options: argparse.Namespace,
    engines: Engines,
    devices: Devices,
    until: float,
) -> Result | None:
    """Records the architecture twice and compares; None where its time has come too late."""
    if time.monotonic() > until:
        return None
    result = Result(row.name, row.model, row.model_class, row.layers, row.cut, whole=row.whole)
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(config_of(row, small=options.small), indent=1))
    if row.drafter:
        (model / DRAFTER).mkdir(exist_ok=True)
        (model / DRAFTER / "config.json").write_text(json.dumps(row.drafter, indent=1))
    seconds: dict[str, float] = {}
    for name in ("eager", "default"):
        bundle = folder / name
        if options.keep and (bundle / META_FILE).exists():
            continue
        shutil.rmtree(bundle, ignore_errors=True)
        began = time.monotonic()
        with devices.one() as device:
            why = _record(row, model, bundle, options, engines, device, compiled=name == "default")
        seconds[name] = round(time.monotonic() - began, 1)
        result = replace(result, seconds=seconds)
        if why:
            return replace(result, why=f"{name}: {why}")
    began = time.monotonic()
    try:
        eager, default = (decode_step(Bundle(folder / name)) for name in ("eager", "default"))
        comparison = asdict(compare(eager, default, row.layers))
        if ON_GPU and not comparison["weight_kernels"]:
            comparison["wrong"] = [*comparison["wrong"], "no kernel is known to read a weight"]
        about = _about(Bundle(folder / "default"))
        step = _step(Bundle(folder / "default"))
    except Exception as error:  # one architecture's fault must not end the others
        return replace(result, why=f"not compared: {type(error).__name__}: {error}"[:300])
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    seconds["compare"] = round(time.monotonic() - began, 1)
    return replace(result, comparison=comparison, about=about, step=step)


def _record(
    row: Architecture,
    model: Path,
    bundle: Path,
    options: argparse.Namespace,
    engines: Engines,
    device: str,
    *,
    compiled: bool,
) -> str:
    """Records one run into the bundle; returns why it did not work, empty where it did."""
    drafts = row.engine.get("speculative_config", {}).get("num_speculative_tokens", 0)
    engine: dict[str, Any] = {"max_num_batched_tokens": 2048} | row.engine
    if row.drafter:
        drafting = engine["speculative_config"] | {"model": str(model / DRAFTER)}
        engine["speculative_config"] = drafting
    if ON_GPU:
        engine |= {"kv_cache_memory_bytes": CACHE_BYTES} | row.on_gpu
    if compiled:
        engine["compilation_config"] = {"cudagraph_capture_sizes": sorted({1, 1 + drafts})}
    command = [
        *(sys.executable, "-m", "spark_prof.cli.main", "record", "-o", str(bundle), "--"),
        *(sys.executable, "-m", "demo.workload", str(model), "--batch", "1"),
        *("--prompt", str(PROMPT), "--tokens", str(TOKENS), "--rounds", str(ROUNDS)),
        *("--memory", str(MEMORY_SHARE), "--engine", json.dumps(engine)),
        *(["--compile"] if compiled else []),
    ]
    threads = max(1, (os.cpu_count() or 1) // options.at_once)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = ENVIRONMENT | {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
    chosen = {name: os.environ.get(name, value) for name, value in variables.items()}
    if device:
        chosen["CUDA_VISIBLE_DEVICES"] = device
    log = bundle.with_suffix(".log")
    code = engines.run(command, log, options.limit, PYTHONPATH=os.pathsep.join(paths), **chosen)
    if code is None:
        return f"not done after {options.limit:.0f} s"
    return reason(log.read_text(errors="replace"), code) if code else ""


def reason(log: str, code: int) -> str:
    r"""Why a run failed: the last error that its output names.

    Example:
        >>> reason("x\nValueError: no such model\nend", 1)
        'ValueError: no such model'
    """
    errors = _ERROR.findall(log)
    if not errors:
        return f"ended with {code}"
    name, text = errors[-1]
    return f"{name.rpartition('.')[2]}: {text.strip()}"[:200]


def _about(bundle: Bundle) -> dict[str, str]:
    facts = bundle.facts(bundle.ranks[0])
    gpu = facts.get("gpu") or {}
    return {
        "gpu": str(gpu.get("name", "")),
        "vllm": str(facts.get("vllm", "")),
        "torch": str(facts.get("torch", "")),
        "date": datetime.now(UTC).date().isoformat(),
        "variables": " ".join(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith("VLLM_") and name not in (*ENVIRONMENT, "VLLM_PORT")
        ),
    }


def _step(bundle: Bundle) -> dict[str, Any]:
    """The decode step and its lower bound, and what its report found broken."""
    step_report = report(bundle)
    phases = step_report.roofline.phases if step_report.roofline else ()
    decode = next((phase for phase in phases if phase.phase == "decode"), None)
    broken = [row.text for row in step_report.invariants if row.ok is False]
    if decode is None:
        return {"broken": broken}
    return {
        "us": decode.step_us,
        "kernels_us": decode.kernels_us,
        "floor_us": decode.floor_us,
        "broken": broken,
    }


def _line(result: Result) -> str:
    if result.why:
        return f"{result.name:16} {result.why}"
    comparison = result.comparison
    shares = " ".join(f"{name} {100 * share:.1f} %" for name, share in comparison["shares"].items())
    counts = f"{comparison['kernels']} kernels, {comparison['weight_kernels']} read a weight"
    wrong = "".join(f"\n    {line}" for line in comparison["wrong"][:10])
    layers = f"{comparison['layers_found']} of {result.layers} layers"
    return f"{result.name:16} {len(comparison['wrong'])} wrong; {counts}; {layers}; {shares}{wrong}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
