"""Ways for a recorder of a running server to die or to be starved, each tried on a real vLLM.

One engine on the CPU is attached to without a number of steps, once for each way of
`tests/dying.py`, while a client asks it for the same tokens again and again. A row says whether all
tokens were those of the unrecorded engine, how long after the blow the engine had ended the
recording, the recorder's exit code, the steps that are kept, what is told as lost, and whether the
next attach got steps. Two more rows stop the recorder (SIGSTOP), for 3 and for 40 s.

usage: python benchmarks/dying_recorders.py [--only WORD] [--piece 32]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.models import write_model  # noqa: E402
from spark_prof.errors import CommandError  # noqa: E402
from spark_prof.traces.assemble import salvage  # noqa: E402
from spark_prof.traces.chunks import pieces_folder, read_counts  # noqa: E402
from tests.dying import WAYS, Way, recorder, registry, small_disk, stopped  # noqa: E402

ENGINE = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_DO_NOT_TRACK": "1"}
BODY = {"model": "tiny", "max_tokens": 12, "ignore_eos": True, "temperature": 0,
        "return_token_ids": True}  # fmt: skip
BAR_SECONDS = 5.0
BACKEND = "torch"


@dataclass
class Client:
    """Asks for the same two texts in turn, and counts answers that differ from the first ones."""

    port: int
    expected: list[list[int]] = field(default_factory=list)
    answers: int = 0
    wrong: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def ask(self, first: int) -> list[int]:
        """The tokens that follow a prompt which begins with that one."""
        body = BODY | {"prompt": [[first, *range(3, 12)]]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=120) as answer:
            tokens: list[int] = json.load(answer)["choices"][0]["token_ids"]
        return tokens

    def begin(self) -> None:
        """Asks once for what is right, and from then on until `end`."""
        self.expected = [self.ask(first) for first in (5, 6)]
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        while not self._ended.is_set():
            for first, expected in zip((5, 6), self.expected, strict=True):
                try:
                    right = self.ask(first) == expected
                except OSError:
                    right = False
                self.answers += 1
                self.wrong += not right

    def end(self) -> None:
        """Asks no more."""
        self._ended.set()


@dataclass
class Row:
    """What came of one way."""

    way: str
    answers: int
    wrong: int
    ended_s: float | None  # None where the recording went on
    code: int | None
    steps: int
    remarks: tuple[str, ...]
    next_steps: int

    def faults(self, way: Way, *, goes_on: bool, late: bool) -> list[str]:
        """What is not as it should be."""
        faults = [f"{self.wrong} of {self.answers} answers differ"] if self.wrong else []
        if goes_on != (self.ended_s is None):
            faults.append("went on" if self.ended_s is None else "was ended")
        if self.ended_s is not None and self.ended_s > BAR_SECONDS and not late:
            faults.append(f"ended after {self.ended_s:.1f} s")
        if not self.next_steps:
            faults.append("the next attach got no step")
        if not self.steps and not (way.lost or way.early):
            faults.append("nothing was kept")
        return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="the ways with this in their name")
    parser.add_argument("--piece", type=int, default=32)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no engine is left
    bad = 0
    with tempfile.TemporaryDirectory(prefix="dying-") as scratch:
        folder = Path(scratch)
        os.environ["TMPDIR"] = scratch
        tempfile.tempdir = scratch
        model = write_model("tiny-moe", folder / "model")
        server, port = serve(model, folder)
        client = Client(port)
        try:
            wait(lambda: is_up(port) or server.poll() is not None, 600, "the server")
            client.begin()
            for number, way in enumerate(way for way in WAYS if options.only in way.what):
                row = attempt(way, client, folder / str(number), options.piece)
                bad += show(row, row.faults(way, goes_on=False, late=False))
            for seconds in (3.0, 40.0):
                way = Way(f"SIGSTOP for {seconds:.0f} s", stopped)
                if options.only in way.what:
                    row = attempt(
                        way, client, folder / f"s{seconds}", options.piece, resume_s=seconds
                    )
                    bad += show(row, row.faults(way, goes_on=seconds < 10, late=True))
        finally:
            client.end()
            server.send_signal(signal.SIGINT)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
    print(f"ways with a fault: {bad}; {client.answers} answers, {client.wrong} of them wrong")
    sys.exit(bool(bad))


def serve(model: Path, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the engine, which nobody records yet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager",
        "--max-model-len", "256", "--max-num-seqs", "4", "--gpu-memory-utilization", "0.3",
        "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny",
    ]  # fmt: skip
    environment = os.environ | ENGINE | {"PYTHONPATH": str(ROOT)}
    with open(folder / "server.log", "wb") as log:
        return subprocess.Popen(
            argv, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        ), port


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def attempt(way: Way, client: Client, base: Path, piece: int, resume_s: float | None = None) -> Row:
    """Attaches, lets the way happen, and attaches again."""
    before = client.answers, client.wrong
    with small_disk(base, 400) as disk:
        if disk is None and way.small_disk:
            raise SystemExit(f"{way.what}: this user may not mount a file system")
        folder = base / "b"
        with recorder(client.port, folder, BACKEND, piece) as recording:
            wait(lambda: recording.has_said("asked "), 60, "the recorder")
            if not way.early:
                wait(lambda: has_piece(folder), 120, f"a piece; {recording.output.read_text()}")
            way.do(recording)
            hit = time.monotonic()
            if way.early:
                time.sleep(0.6)
            ended = wait_at_most(lambda: not recorded_into(), resume_s or 60.0)
            ended_s = time.monotonic() - hit if ended else None
            if resume_s is not None:
                recording.send(signal.SIGCONT)
                if not ended:
                    recording.send(signal.SIGTERM)
            code = recording.process.wait(120)
            last_line = recording.output.read_text().strip().splitlines()[-1:]
        (base / "others").unlink(missing_ok=True)
        steps, remarks = (0, tuple(last_line)) if way.lost or way.early else bundle_contents(folder)
        got = next_attach(client.port, base.with_name(f"{base.name}-next"), piece)
    answers, wrong = client.answers - before[0], client.wrong - before[1]
    return Row(way.what, answers, wrong, ended_s, code, steps, remarks, got)


def bundle_contents(folder: Path) -> tuple[int, tuple[str, ...]]:
    try:
        bundle = salvage(folder).bundle
    except CommandError as error:
        return 0, (str(error),)
    return len(bundle.frame("steps", 0)), (bundle.meta.state, *bundle.meta.lost)


def next_attach(port: int, folder: Path, piece: int) -> int:
    """The steps that are recorded when somebody attaches again."""
    with recorder(port, folder, BACKEND, piece) as recording:
        wait_at_most(lambda: has_piece(folder) or recording.process.poll() is not None, 60)
        recording.send(signal.SIGTERM)
        recording.process.wait(120)
    steps = bundle_contents(folder)[0] if folder.exists() else 0
    shutil.rmtree(folder, ignore_errors=True)
    wait_at_most(lambda: not recorded_into(), 30)
    return steps


def has_piece(folder: Path) -> bool:
    return any(pieces_folder(folder).glob("rank0.*.steps.npy")) or any(
        counts.failed for counts in read_counts(pieces_folder(folder)).values()
    )


def recorded_into() -> list[str]:
    """What the engine's processes say that they are recorded into."""
    recordings: list[Any] = []
    for path in registry().glob("*.json"):
        try:
            recordings.append(json.loads(path.read_text()).get("recording"))
        except (OSError, ValueError):
            continue
    return [recording for recording in recordings if recording]


def show(row: Row, faults: list[str]) -> bool:
    ended = "recording goes on" if row.ended_s is None else f"ended after {row.ended_s:4.1f} s"
    print(
        f"{row.way:36} {row.answers:4} answers, {row.wrong} differ; {ended}; exit code {row.code};"
        f" {row.steps:5} steps kept; next attach {row.next_steps} steps; "
        f"told: {'; '.join(row.remarks)[:300]} -> {'; '.join(faults) or 'good'}",
        flush=True,
    )
    return bool(faults)


def wait(condition: Callable[[], Any], seconds: float, condition_name: str) -> None:
    if not wait_at_most(condition, seconds):
        raise SystemExit(f"never: {condition_name}")


def wait_at_most(condition: Callable[[], Any], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


if __name__ == "__main__":
    main()
