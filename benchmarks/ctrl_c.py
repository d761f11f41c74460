"""Ctrl-C in a real terminal while a real vLLM server has requests: every step is kept.

Each moment starts `spark-prof record --steps 0 -- vllm's server` in a pseudo-terminal, sends it
requests without a break, types Ctrl-C after so many recorded steps (every other time twice, 50 ms
apart), and compares the steps of the bundle with those that the worker had counted in the file that
outlives it. Nothing but the terminal sends a signal.

usage: python benchmarks/ctrl_c.py [--moments 20] [--first 0] [--seed 1] [--idle]
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import random
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import write_model  # noqa: E402
from spark_prof.traces.bundle import Bundle  # noqa: E402
from spark_prof.traces.chunks import pieces_folder, read_counts  # noqa: E402

ENGINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
CLIENTS, TOKENS = 3, 64
MOST_STEPS = 700  # of which a piece of 256 is written twice
START_SECONDS, END_SECONDS = 600, 240


def moment(folder: Path, model: Path, steps: int, presses: int, *, idle: bool) -> tuple[bool, str]:
    """Whether all steps were kept, and what is printed of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bundle = folder / "b"
    command = [
        sys.executable, "-m", "spark_prof.cli.main", "record", "-o", str(bundle), "--steps", "0",
        "--", sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager",
        "--max-model-len", "256", "--max-num-seqs", "4", "--host", "127.0.0.1",
        "--port", str(port), "--served-model-name", "m",
    ]  # fmt: skip
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(ROOT)
        os.execvpe(command[0], command, os.environ | ENGINE | {"PYTHONPATH": str(ROOT)})
    output: list[bytes] = []
    threading.Thread(target=_read, args=(terminal, output), daemon=True).start()
    over = threading.Event()
    try:
        _until(lambda: b"Application startup complete" in b"".join(output), pid, START_SECONDS)
        for _ in range(CLIENTS):
            threading.Thread(target=_ask, args=(port, over), daemon=True).start()
        pieces = pieces_folder(bundle)
        _until(lambda: _recorded(pieces) >= steps, pid, START_SECONDS)
        if idle:
            over.set()
            time.sleep(4.0)
        counts = os.open(pieces / "counts.rank0.bin", os.O_RDONLY)  # the pieces will be gone
        pressed = _recorded(pieces)
        family = psutil.Process(pid).children(recursive=True)
        for _ in range(presses):
            os.write(terminal, b"\x03")
            time.sleep(0.05)
        begun = time.monotonic()
        code = _until(lambda: False, pid, END_SECONDS)
        seconds = time.monotonic() - begun
        recorded = int.from_bytes(os.pread(counts, 8, 96), "little")
        left = [process.pid for process in psutil.wait_procs(family, timeout=20)[1]]
    finally:
        over.set()
        _kill(pid)
    steps_saved, state, lost = 0, "no bundle", ""
    if (bundle / "meta.json").exists():
        assembled = Bundle(bundle)
        steps_saved, state = len(assembled.frame("steps", 0)), assembled.meta.state
        lost = "; ".join(line for line in assembled.meta.lost if "flushed" in line)
    whole = steps_saved == recorded >= pressed and code == 0 and state == "complete" and not left
    if not steps_saved:
        lost = b"".join(output)[-400:].decode(errors="replace")
    return whole, (
        f"{steps_saved} of {recorded} steps kept ({pressed} when Ctrl-C came, {presses} x), "
        f"{state}, exit code {code}, {seconds:.1f} s, {len(left)} processes left {lost}"
    )


def _recorded(pieces: Path) -> int:
    counts = read_counts(pieces).get("rank0")
    return counts.recorded if counts else 0


def _until(true: object, pid: int, seconds: float) -> int | None:
    """Waits for a condition, or the process's end, whose exit code it returns."""
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.02)
    return None


def _read(terminal: int, output: list[bytes]) -> None:
    with suppress(OSError):
        while True:
            if select.select([terminal], [], [], 1.0)[0]:
                output.append(os.read(terminal, 1 << 16))


def _ask(port: int, over: threading.Event) -> None:
    """One client that asks again as soon as it has its answer."""
    body = {"model": "m", "prompt": [[5, 6, 7, 8, 9]], "max_tokens": TOKENS, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body | {"return_token_ids": True}).encode(),
        headers={"Content-Type": "application/json"},
    )
    while not over.is_set():
        with suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()


def _kill(pid: int) -> None:
    """Ends what is left of a moment that went wrong."""
    with suppress(psutil.Error, OSError):
        for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
            process.kill()
        os.waitpid(pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--idle", action="store_true", help="the requests end before")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    good = 0
    for number in range(options.first, options.first + options.moments):
        steps = random.Random(f"{options.seed} {number}").randint(1, MOST_STEPS)
        folder = Path(tempfile.mkdtemp(prefix="ctrl-c-"))
        try:
            model = write_model("tiny-dense", folder / "model")
            whole, line = moment(folder, model, steps, 1 + number % 2, idle=options.idle)
        except (OSError, psutil.Error) as error:
            whole, line = False, f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        good += whole
        print(f"{number:2} {'kept' if whole else 'LOST'} {line}", flush=True)
    print(f"every step kept in {good} of {options.moments}")
    return 0 if good == options.moments else 1


if __name__ == "__main__":
    sys.exit(main())
