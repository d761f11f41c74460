"""Compares what the commands print of the recordings with what is stored, or renews that."""

from __future__ import annotations

import argparse
import sys
from difflib import unified_diff
from itertools import islice
from pathlib import Path

from tests.golden.corpus import documents, outputs

EXPECTED = Path(__file__).parent / "expected"
MOST_LINES = 60
"""Lines that are shown of one file's differences."""


def differences(name: str, found: str) -> list[str]:
    """The first lines of a diff between what is stored of a document and what was found."""
    path = EXPECTED / f"{name}.txt"
    stored = path.read_text().split("\n") if path.exists() else []
    compared = unified_diff(stored, found.split("\n"), f"expected/{name}", name, lineterm="", n=1)
    lines = [line[:300] for line in islice(compared, MOST_LINES + 1)]
    return [*lines[:MOST_LINES], "..."] if len(lines) > MOST_LINES else lines


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="store what the commands print")
    parser.add_argument("only", nargs="*", help="documents whose names begin so; by default all")
    arguments = parser.parse_args()
    chosen = tuple(arguments.only) or ("",)
    names = [name for name in documents() if name.startswith(chosen)]
    failed = False
    for name, found in outputs(names):
        path = EXPECTED / f"{name}.txt"
        if arguments.write:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found)
        elif lines := differences(name, found):
            failed = True
            print(*lines, sep="\n", flush=True)
    stored = {str(path.relative_to(EXPECTED))[: -len(".txt")] for path in EXPECTED.rglob("*.txt")}
    for name in sorted(stored - set(documents())):
        if arguments.write:
            (EXPECTED / f"{name}.txt").unlink()
        else:
            failed = True
            print(f"expected/{name}.txt is of nothing in tests/data")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
