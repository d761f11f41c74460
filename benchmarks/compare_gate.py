"""Whether the gate of `compare` passes recordings of the same thing and fails slower ones.

Pairs are of recordings in tests/data, read as the command reads them, and compared both ways:
- starts: engines that were started at different times, for the same model and batch size
- windows: stretches of one recording that share no step, which says less: one engine start
- drifting: stretches of recordings whose steps become faster or slower by themselves, by up to a
  quarter; they are shown, and count to no bar
For the planted ones each second recording is replaced by one that is 3 % slower in one component,
one layer or its gaps; all that follows comes later.

usage: python benchmarks/compare_gate.py [--limits 3% 2%] [--planted 0.03]

It fails where a pair of the same thing fails the first limit, where fewer than 20 pass it, or where
fewer than 20 planted ones fail it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spark_prof.analyzers.comparing.gate.expression import parse  # noqa: E402
from spark_prof.analyzers.comparing.gate.verdict import Checked, check  # noqa: E402
from spark_prof.analyzers.comparing.model import Side  # noqa: E402
from spark_prof.analyzers.comparing.summary import compare  # noqa: E402
from spark_prof.datasets.compared import read_side  # noqa: E402
from tests.slowed import slowed, window  # noqa: E402

DATA = ROOT / "tests" / "data"
FEWEST = 20


@dataclass(frozen=True)
class Cut:
    """One stretch of a recording.

    Attributes:
        path: of the recording in tests/data.
        batch: of steps of this batch size.
        part: which part of them, from 0.
        parts: into how many they are cut.
    """

    path: str
    batch: int
    part: int = 0
    parts: int = 1

    def __str__(self) -> str:
        name = f"{self.path}, batch {self.batch}"
        return name if self.parts == 1 else f"{name}, part {self.part + 1} of {self.parts}"

    def made(self, folder: Path) -> Path:
        """Its bundle, made once."""
        name = str(self).replace("/", "-").replace(", ", "-").replace(" ", "-")
        out = folder / name
        return out if out.exists() else window(DATA / self.path, out, *self._arguments)

    @property
    def _arguments(self) -> tuple[int, int, int]:
        return self.part, self.parts, self.batch


QWEN = (
    *(Cut("compare-h100/qwen-graph", 1, part, 3) for part in range(3)),
    *(Cut("h100-qwen3-30b-a3b-nvfp4-graphs", 1, part, 2) for part in range(2)),
    *(Cut("code-h100/qwen3-30b-a3b-nvfp4", 1, part, 2) for part in range(2)),
)
"""Stretches of three engine starts of one model, hours apart."""

GPT = (Cut("compare-h100/gpt-graph", 1), Cut("code-h100/gpt-oss-20b-mxfp4", 1))
"""Two engine starts of another one."""

WINDOWS = (
    ("compare-h100/qwen-graph", 1, 3),
    ("compare-h100/qwen-graph", 8, 3),
    ("compare-h100/gpt-graph", 1, 3),
    ("compare-h100/gpt-graph", 8, 3),
    ("h100-qwen3-30b-a3b-nvfp4-graphs", 1, 2),
    ("code-h100/qwen3-30b-a3b-nvfp4", 1, 2),
    ("benchmarks/vllm-serve-bundle", 2, 3),
)
"""Recordings, a batch size, and into how many stretches they are cut."""

GROWING = ("compare-h100/gpt-duty", 1, 5)
"""One whose context grows from 131 to 4,180 tokens: only neighbours do the same."""

DRIFTING = (
    ("ab-h100/recording-a-1", 1, 3),
    ("ab-h100/recording-b-1", 1, 3),
    ("h100-gpt-oss-20b-mxfp4-eager", 1, 2),
)

PLANTS = ("experts", "attention", "layer 3", "gaps")
_WITHOUT_LAYERS = ("benchmarks/vllm-serve-bundle",)


@dataclass(frozen=True)
class Pair:
    """Two recordings; `kind` is starts, windows or drifting."""

    kind: str
    a: Cut
    b: Cut


def pairs() -> Iterator[Pair]:
    """All pairs."""
    for one, two in (*combinations(QWEN, 2), GPT):
        if one.path != two.path:
            yield Pair("starts", one, two)
    for path, batch, parts in WINDOWS:
        yield from _stretches("windows", path, batch, parts)
    path, batch, parts = GROWING
    for part in range(parts - 1):
        yield Pair("windows", Cut(path, batch, part, parts), Cut(path, batch, part + 1, parts))
    for path, batch, parts in DRIFTING:
        yield from _stretches("drifting", path, batch, parts)


def _stretches(kind: str, path: str, batch: int, parts: int) -> Iterator[Pair]:
    for one, two in combinations(range(parts), 2):
        yield Pair(kind, Cut(path, batch, one, parts), Cut(path, batch, two, parts))


def judged(a: Side, b: Side, limits: Sequence[str]) -> tuple[Checked, ...]:
    """What becomes of each limit."""
    return check(compare(a, b), [parse(f"decode_us.median > {limit}") for limit in limits])


def _line(kind: str, what: str, checked: Sequence[Checked]) -> str:
    change = checked[0].reading.change
    figures = [f"{100 * change.share(us):+6.2f}" for us in (change.us, change.low, change.high)]
    outcomes = " ".join(f"{each.outcome:9}" for each in checked)
    return f"{kind:8} {figures[0]} % ({figures[1]} to {figures[2]})  {outcomes}  {what}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--limits", nargs="+", default=["3%", "2%"])
    parser.add_argument("--planted", type=float, default=0.03)
    options = parser.parse_args()
    same: list[tuple[Pair, tuple[Checked, ...]]] = []
    planted: list[tuple[Pair, tuple[Checked, ...]]] = []
    with tempfile.TemporaryDirectory(prefix="compare-gate-") as made:
        folder = Path(made)

        @cache
        def side(cut: Cut) -> Side:
            return read_side(str(cut.made(folder)))

        for number, pair in enumerate(pairs()):
            for one, two in ((pair.a, pair.b), (pair.b, pair.a)):
                same.append((pair, judged(side(one), side(two), options.limits)))
                print(_line(pair.kind, f"{one} | {two}", same[-1][1]), flush=True)
            plant = "gaps" if pair.b.path in _WITHOUT_LAYERS else PLANTS[number % len(PLANTS)]
            made_slow = slowed(
                pair.b.made(folder), folder / f"slow-{number}", options.planted, plant
            )
            slow = read_side(str(made_slow))
            planted.append((pair, judged(side(pair.a), slow, options.limits)))
            print(_line("planted", f"  the first, {plant} slower", planted[-1][1]), flush=True)
            shutil.rmtree(made_slow)
    return _told(same, planted, options.limits)


def _told(
    same: Sequence[tuple[Pair, tuple[Checked, ...]]],
    planted: Sequence[tuple[Pair, tuple[Checked, ...]]],
    limits: Sequence[str],
) -> int:
    for place, limit in enumerate(limits):
        for name, rows in (("same thing", same), ("planted", planted)):
            for kind in ("starts", "windows", "drifting"):
                outcomes = [row[place].outcome for pair, row in rows if pair.kind == kind]
                told = ", ".join(
                    f"{outcomes.count(each)} {each}" for each in ("passed", "undecided", "failed")
                )
                print(f"> {limit}, {name}, {kind}: {told}")
    counted = [row[0].outcome for pair, row in same if pair.kind != "drifting"]
    found = [row[0].outcome for pair, row in planted if pair.kind != "drifting"]
    missed = "failed" in counted or counted.count("passed") < FEWEST
    return int(missed or found.count("failed") < FEWEST)


if __name__ == "__main__":
    sys.exit(main())
