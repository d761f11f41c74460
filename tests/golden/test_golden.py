"""Everything that the commands print of the recordings in `tests/data` is what is stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.golden.plain_json import plain

ROOT = Path(__file__).parents[2]


def test_the_outputs_are_those_that_are_stored() -> None:
    command = [sys.executable, "-m", "tests.golden"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    renew = "\nAfter an intended change: python -m tests.golden --write"
    assert not ended.returncode, ended.stdout + ended.stderr[-3000:] + renew


def test_plain_json_keeps_every_figure() -> None:
    long: dict[str, str] = {}
    name = "k" * 80
    rows = [{"name": name, "us": 0.1 + 0.2, "n": 1}, {"name": "b", "n": 1, "of": {"a": None}}]
    assert list(plain({"kernels": rows, "empty": [], "gpu": {"name": name}}, long)) == [
        "kernels[2]: n=1",
        "  name | us | of",
        f'  "{next(iter(long))}" | 0.3 | ',
        '  "b" |  | {"a":null}',
        "empty: []",
        f'gpu.name: "{name}"',
    ]
    assert list(long.values()) == [name]
    inner = [{"name": f"kernel {number}", "us": 100 + number} for number in range(9)]
    lines = list(plain({"steps": [{"phase": "decode", "kernels": inner}]}, {}))
    head = ['steps[1]: phase="decode" kernels=below', "steps[0].kernels[9]:", "  name | us"]
    assert (lines[:3], lines[-1]) == (head, '  "kernel 8" | 108')
