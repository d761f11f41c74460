"""Stands in for nsys: `profile`, `stop` and `export` with the options of the real one.

It runs the command as nsys does, in a session of its own, and its "report" names what was recorded.
What it exports is one kernel, launched in the first recorded step by the process that ran it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2])]

REFUSES_UNKNOWN = {
    "profile": "trace cuda-graph-trace trace-fork-before-exec sample cpuctxsw kill wait export"
    " force-overwrite session-new output",
    "stop": "session",
    "export": "type force-overwrite output",
}


def main() -> int:
    words = sys.argv[1:]
    if words == ["--version"]:
        print(f"NVIDIA Nsight Systems version {os.environ.get('FAKE_NSYS', '2025.3.2.47')}-1v0")
        return 0
    verb, words = words[0], words[1:]
    options = {}
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0)[2:].partition("=")
        if name not in REFUSES_UNKNOWN[verb].split():
            print(f"unrecognised option '--{name}'", file=sys.stderr)
            return 1
        options[name] = value
    return {"profile": profile, "stop": stop, "export": export}[verb](options, words)


def session_file(name: str) -> Path:
    return Path(os.environ["FAKE_NSYS_SESSIONS"]) / name


def profile(options: dict[str, str], command: list[str]) -> int:
    report = Path(options["output"] + ".nsys-rep")
    session = session_file(options["session-new"])
    session.write_text(str(report))
    child = subprocess.Popen(command, start_new_session=True)
    signal.signal(signal.SIGINT, lambda *_: child.send_signal(signal.SIGINT))
    code = child.wait()
    if session.exists():  # nobody has stopped it
        session.unlink()
        report.write_text(str(report.parent))
    return code


def stop(options: dict[str, str], _: list[str]) -> int:
    session = session_file(options["session"])
    if not session.exists():
        print("Collection stop is not allowed in this state.", file=sys.stderr)
        return 1
    report = Path(session.read_text())
    session.unlink()
    report.write_text(str(report.parent))
    print("Generated:\n    " + str(report))
    return 0


def export(options: dict[str, str], words: list[str]) -> int:
    if os.environ.get("FAKE_NSYS_FAILS"):
        print(
            "[1/1] [=====50%    ] x.nsys-rep\rReport was created by a newer nsys", file=sys.stderr
        )
        return 1
    from tests.nsys_files import BEGUN, Export

    pieces = Path(words[0]).read_text() + "/pieces"
    facts = json.loads((Path(pieces) / "rank0.facts.json").read_text())
    steps = np.load(Path(pieces) / "rank0.00000.steps.npy")
    at = int(steps["start_ns"][0]) - BEGUN
    made = Export().mark(at, f"spark_prof clock {BEGUN + at}")
    made.launch(at + 1, 1, pid=facts["pid"], thread=int(steps["thread"][0]))
    made.kernel("gemm", at + 10, at + 500, 1, pid=facts["pid"])
    made.write(Path(options["output"]))
    time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
