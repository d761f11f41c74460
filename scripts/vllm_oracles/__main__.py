"""Derives the table of backends from unzipped vLLM wheels, or compares it with the one at hand.

    python -m scripts.vllm_oracles FOLDER            # FOLDER/0.33.0/vllm/...: prints differences
    python -m scripts.vllm_oracles FOLDER --write    # writes the table anew
    python -m scripts.vllm_oracles FOLDER --show 0.33.0 90 nvfp4

Exit code 1 says that the table at hand differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from scripts.vllm_oracles.candidates import FORMATS
from scripts.vllm_oracles.deployment import trees
from scripts.vllm_oracles.table import cell, file_text, of_many, table

TABLE = Path(__file__).parents[2] / "spark_prof" / "rules" / "vllm_backends.json"


def main() -> int:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m scripts.vllm_oracles", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--show", nargs=3, metavar=("VERSION", "CAPABILITY", "FORMAT"))
    args = parser.parse_args()
    sources = trees(args.folder)
    if not sources:
        print(f"{args.folder} holds no VERSION/vllm/envs.py", file=sys.stderr)
        return 2
    if args.show:
        version, capability, stored = args.show
        for form in FORMATS:
            if form.stored == stored:
                print(
                    form.option, json.dumps(cell(sources[version], form, int(capability)), indent=1)
                )
        return 0
    folders = [tree.folder for tree in sources.values()]
    if args.write:
        TABLE.write_text(file_text(table(folders)), "utf-8")
        return 0
    return compared(folders)


def compared(folders: list[Path]) -> int:
    """Prints every cell that the table at hand has otherwise, and how many were compared."""
    at_hand = json.loads(TABLE.read_text("utf-8"))
    versions = at_hand["versions"]
    cells = wrong = 0
    for version, (version_cells, known_names) in of_many(folders).items():
        for (option, stored, capability), here in version_cells.items():
            cells += 1
            stored_row = _row(at_hand, version, versions, option, stored, capability)
            if stored_row != here:
                wrong += 1
                print(f"{version} {capability} {option} {stored}: {stored_row} != {here}")
        for kind, every in known_names.items():
            for name in sorted(set(every) - set(at_hand["names"][kind])):
                wrong += 1
                print(f"{version} {kind}: {name} is in no row")
    print(f"{cells} cells of {len(folders)} versions compared, {wrong} differences")
    return 1 if wrong else 0


def _row(
    at_hand: dict[str, Any],
    version: str,
    versions: list[str],
    option: str,
    stored: str,
    number: int,
) -> dict[str, Any] | None:
    if version not in versions:
        return None
    place = versions.index(version)
    for row in at_hand["rows"]:
        of = (row["option"], row["stored"]) == (option, stored) and number in row["capabilities"]
        if of and versions.index(row["since"]) <= place <= versions.index(row["until"]):
            keys = ("cannot_tell", "tries", "values", "variables")
            return {key: row[key] for key in keys if key in row}
    return None


if __name__ == "__main__":
    raise SystemExit(main())
