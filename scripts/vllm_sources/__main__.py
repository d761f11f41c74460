"""Reads vLLM's wheels and writes the tables in spark_prof/rules (vllm_*.json), or checks a wheel.

usage: python -m scripts.vllm_sources [--check] [--anew] PATH ...

Each PATH is a vLLM wheel, an sdist, or a folder that has the package vllm; it is read without being
installed, unpacked or run. Versions that the tables hold already stay in them, unless --anew.

--check writes nothing. Of a version in the tables it prints what differs from them. Of a new one it
prints what no row knows: names that spark-prof reaches into and that are gone, new options, values,
environment variables, backends, architectures with breakable graphs, and lines of the log.

exit code: 0 nothing is missing or differs, 1 something that spark-prof reaches into is gone or a
table differs, 2 a file cannot be read
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from scripts.vllm_sources import tables
from scripts.vllm_sources.check import News, differences, news
from scripts.vllm_sources.facts import COLUMNS, Facts, facts_of, names_looked_for
from scripts.vllm_sources.sources import SourceError, open_sources
from scripts.vllm_sources.tables import Table
from spark_prof.errors import one_line


def main(words: Sequence[str] | None = None) -> int:
    """Writes or checks; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.vllm_sources", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--check", action="store_true", help="write nothing; print what is new")
    parser.add_argument("--anew", action="store_true", help="forget the versions in the tables")
    parser.add_argument("--folder", type=Path, default=tables.FOLDER, help="where the tables are")
    options = parser.parse_args(words)
    gc.disable()  # syntax trees are millions of objects, and go with their last reference
    try:
        stored = {
            name: Table(columns, {}) if options.anew else _read(options.folder, name, columns)
            for name, columns in COLUMNS.items()
        }
        if options.check:
            return _check(options.paths, stored)
        return _write(options.paths, stored, options.folder)
    except (SourceError, OSError) as error:
        print(f"vllm_sources: {one_line(str(error))}", file=sys.stderr)
        return 2


def _read(folder: Path, name: str, columns: str) -> Table:
    path = tables.path_of(name, folder)
    try:
        return tables.read(path, columns)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SourceError(f"{path}: is no table of this script's; write it --anew") from error


def _facts(path: Path) -> tuple[Facts, float]:
    began = time.monotonic()
    return facts_of(open_sources(path)), time.monotonic() - began


def _write(paths: Sequence[Path], stored: Mapping[str, Table], folder: Path) -> int:
    updated = dict(stored)
    looked_for = frozenset((name,) for name in names_looked_for())
    table_names = {key for keys in stored["names"].by_version.values() for key in keys}
    unread = looked_for - table_names - stored["names"].looked_for
    read = set()
    for path in paths:
        facts, seconds = _facts(path)
        read.add(facts.version)
        counts = ", ".join(f"{len(keys):,} {name}" for name, keys in facts.keys.items())
        print(f"{facts.version}: {counts}; {seconds:.1f} s", flush=True)
        updated = {
            name: updated[name].with_version(facts.version, facts.keys[name]) for name in updated
        }
    unread_versions = [version for version in stored["names"].by_version if version not in read]
    if unread and unread_versions:
        raise SourceError(
            f"{len(unread)} names, such as {min(unread)[0]}, were never looked for in "
            f"{', '.join(unread_versions)}: give their wheels too"
        )
    names = updated["names"]
    names_by_version = {version: keys & looked_for for version, keys in names.by_version.items()}
    updated["names"] = Table(names.columns, names_by_version, looked_for)
    for name, table in updated.items():
        path = tables.path_of(name, folder)
        tables.write(path, table)
        print(f"{path}: {len(table.rows):,} rows, {path.stat().st_size / 1e3:.0f} kB")
    return 0


def _check(paths: Sequence[Path], stored: Mapping[str, Table]) -> int:
    code = 0
    for path in paths:
        facts, seconds = _facts(path)
        if facts.version in stored["names"].by_version:
            entries = differences(facts, stored)
            print(
                f"vLLM {facts.version}: {len(entries)} differences from the tables; {seconds:.1f} s"
            )
            code |= bool(entries)
        elif not stored["names"].by_version:
            raise SourceError("there are no tables to compare with; write them first")
        else:
            entries = news(facts, stored)
            print(
                f"vLLM {facts.version} is not in the tables: {len(entries)} news; {seconds:.1f} s"
            )
            code |= any(it.breaks for it in entries)
        _print(entries)
    return code


def _print(entries: Sequence[News]) -> None:
    order = {kind: at for at, kind in enumerate(dict.fromkeys(it.kind for it in entries))}
    ordered = sorted(entries, key=lambda it: order[it.kind])
    for kind, group in groupby(ordered, key=lambda it: it.kind):
        items = list(group)
        print(f"\n{kind} ({len(items)}):")
        for it in items:
            print(f"  {one_line(it.name)}")


if __name__ == "__main__":
    sys.exit(main())
