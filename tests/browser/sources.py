"""What is opened in the tests: recordings of this project and made ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.browser.hostile import write_hostile
from tests.fuzz.test_handmade import hostile_kineto

_DATA = Path(__file__).resolve().parents[1] / "data"

OWN = {
    "graphs": _DATA / "h100-gpt-oss-20b-mxfp4-graphs",
    "nvfp4": _DATA / "code-h100" / "qwen3-30b-a3b-nvfp4",
    "dense-nvfp4": _DATA / "code-h100" / "dense-nvfp4",
    "dense-awq": _DATA / "code-h100" / "dense-awq",
    "cpu": _DATA / "benchmarks" / "vllm-serve-bundle",
    "ab": _DATA / "ab-h100" / "result.json",
}
"""Recordings of this project, by the name that the tests call them."""

_RANKS = 8


def own(folder: Path) -> Mapping[str, Path]:
    """This project's recordings; in the folder a run of eight ranks and hostile recordings."""
    play = Play(ranks=_RANKS, slow={step: step % 3 for step in range(0, 40, 2)})
    hosts = {rank: {"host": "a", "boot": "1"} for rank in range(_RANKS)}
    bundle(folder / "ranks", play, hosts, parallel=parallel(tensor=_RANKS))
    trace = folder / "<img src=x onerror=window.fuzzed=1> $fuzzed$ :smile: **fuzzed**.json"
    trace.write_bytes(hostile_kineto())
    made = {
        "ranks": folder / "ranks",
        "hostile": write_hostile(OWN["graphs"], folder / "<fuzzed> `fuzzed` _fuzzed_"),
        "hostile-trace": trace,
    }
    return OWN | made


@cache
def report_of(name: str) -> Any:
    """The report on one of `OWN` as JSON, as `spark-prof report` prints it."""
    command = [sys.executable, "-m", "spark_prof.cli.main", "report", str(OWN[name])]
    done = subprocess.run(
        [*command, "--format", "json"], capture_output=True, check=True, timeout=120
    )
    return json.loads(done.stdout)
