"""Joins what several hosts recorded of one run into one bundle, and moves times to one clock."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_prof.errors import CommandError
from spark_prof.files import replacing
from spark_prof.traces.assemble import SALVAGED, absent_ranks, assemble, open_bundle
from spark_prof.traces.bundle import (
    META_FILE,
    Bundle,
    Meta,
    TableFiles,
    parquet_options,
    table_file,
)
from spark_prof.traces.chunk_files import being_recorded, json_files
from spark_prof.traces.chunks import pieces_folder
from spark_prof.traces.machine_code import copy_cubins
from spark_prof.traces.tables import DURATIONS, OF_SCHEDULERS

_UNSET = 0  # a time that never came, such as an update of the scheduler; it stays


@dataclass(frozen=True)
class Shift:
    """A clock against the reference clock, in ns: positive where it is ahead."""

    reference_rank: int
    offset_ns: float  # the offset at `at_ns`, a time by the moved clock
    drift: float  # by how much it grows, in ns per ns
    at_ns: int
    uncertainty_ns: float  # the true offset is no further away
    basis: str  # what it stands on: collectives or scheduler
    events: int  # how many of them
    applied: bool  # whether the times were moved; an offset below its uncertainty moves nothing


def moved(rows: pa.Table, shift: Shift) -> pa.Table:
    """The rows by the reference clock: every time in nanoseconds, whose column ends in `_ns`."""
    for index, field in enumerate(rows.schema):
        if not field.name.endswith("_ns") or field.name in DURATIONS:
            continue
        time = rows.column(index).to_numpy()
        # As whole ns and the small drifted rest: a float of the time itself would lose digits.
        whole = int(shift.offset_ns)
        rest = shift.offset_ns - whole + shift.drift * (time - shift.at_ns).astype(np.float64)
        shifted = time - whole - np.rint(rest).astype(np.int64)
        column = pa.array(np.where(time == _UNSET, _UNSET, shifted), pa.int64())
        rows = rows.set_column(index, field, column)
    return rows


SHARED_TABLES = frozenset({"log", "cubins", "functions"})
"""Tables of all processes of a bundle, kept as rank 0's."""

_SHARED_FACTS = ("vllm", "model", "model_config", "quantization", "dtype", "parallel")
"""Facts that all ranks of one run share."""


def check_same_run(parts: Sequence[Bundle]) -> None:
    """Refuses parts that do not belong together."""
    owners: dict[str, Bundle] = {}
    for part in parts:
        if not part.ranks:
            raise CommandError(f"{part.path} has no rank; give the folders that hold the ranks")
        for name in part.meta.tables:
            if name.rpartition("-rank")[0] in SHARED_TABLES:
                continue
            other = owners.setdefault(name, part)
            if other is not part:
                table = name.removesuffix(".parquet").replace("-rank", " of rank ")
                raise CommandError(
                    f"{other.path} and {part.path} both hold {table}; give different ranks of one "
                    "run"
                )
    first = parts[0]
    for part in parts[1:]:
        if why := _difference(first, part):
            raise CommandError(f"{first.path} and {part.path} are not of one run: {why}")


def _difference(first: Bundle, second: Bundle) -> str | None:
    """Why the two cannot be parts of one run."""
    ours, theirs = (part.facts(part.ranks[0]) for part in (first, second))
    for name in _SHARED_FACTS:
        values = [_portable(name, fact.get(name)) for fact in (ours, theirs)]
        if name in ours and name in theirs and values[0] != values[1]:
            return f"{name} differs ({ours[name]!r:.40} and {theirs[name]!r:.40})"
    return None


def _portable(name: str, value: object) -> object:
    """A fact without the folder that a host keeps the model in."""
    if name == "model":
        return PurePath(str(value)).name
    if isinstance(value, dict):
        return {key: entry for key, entry in value.items() if key != "_name_or_path"}
    return value


_STATES = ("complete", "interrupted", SALVAGED)


def open_parts(sources: Sequence[Path]) -> list[Bundle]:
    """Opens what each host wrote: a bundle, or a folder of pieces that is made into one."""
    parts = [_open(source) for source in sources]
    check_same_run(parts)
    return sorted(parts, key=lambda part: part.ranks or (1 << 30,))


def join_bundles(parts: Sequence[Bundle], folder: Path) -> Bundle:
    """Writes one bundle with the tables of all parts; times stay as they were recorded."""
    with TableFiles(folder) as tables:
        tables.add("log", 0, pd.concat([part.frame("log", 0) for part in parts]))
        if any(table_file("cubins", 0) in part.meta.tables for part in parts):
            tables.add("cubins", 0, _cubins([part.frame("cubins", 0) for part in parts]))
        if any(table_file("functions", 0) in part.meta.tables for part in parts):
            functions = pd.concat([part.frame("functions", 0) for part in parts], ignore_index=True)
            texts = {"architecture": str, "suffix": str}
            functions = functions.astype(texts).drop_duplicates(
                ["hash", "function"], ignore_index=True
            )
            tables.add("functions", 0, functions)
    rows = dict(tables.rows)
    for part in parts:
        for name in part.meta.tables.keys() - rows:
            shutil.copyfile(part.path / name, folder / name)
            rows[name] = part.meta.tables[name]
        copy_cubins(part.path, folder)
    _joined_meta(parts, rows).write(folder)
    return Bundle(folder)


def move_clocks(bundle: Bundle, shifts: Mapping[str, Shift], lost: Sequence[str] = ()) -> Bundle:
    """Moves tables of processes such as ``rank2`` to the reference clock; meta.json keeps it."""
    facts = {name: dict(fact) for name, fact in bundle.meta.facts.items()}
    for process, shift in shifts.items():
        fact = facts.get(process, {})
        fact["clock_shifts"] = [*fact.get("clock_shifts", []), asdict(shift)]
        facts[process] = fact
        if shift.applied:
            for name in _files_of(bundle.meta, process):
                _move(bundle.path / name, shift)
    meta = replace(bundle.meta, facts=facts, lost=(*bundle.meta.lost, *lost))
    meta.write(bundle.path)
    return Bundle(bundle.path)


def _open(source: Path) -> Bundle:
    pieces = pieces_folder(source)
    if pieces.is_dir() and not (source / META_FILE).exists() and not being_recorded(pieces):
        progress = json_files(pieces, "rank*.progress.json")
        if progress and all(value.get("finished") for value in progress):
            # Its ranks wrote their last piece; the recorder ran on another host.
            return assemble(source, state=_STATES[0])
    return open_bundle(source)


def _joined_meta(parts: Sequence[Bundle], rows: dict[str, int]) -> Meta:
    metas = [part.meta for part in parts]
    first = next((meta for meta in metas if meta.command), metas[0])
    facts = {name: fact for meta in reversed(metas) for name, fact in meta.facts.items()}
    lost = list(dict.fromkeys(line for meta in metas for line in meta.lost))
    if absent := [line for meta in metas for line in absent_ranks(meta.facts) if line in lost]:
        # What one host lacked, another has.
        lost = [line for line in lost if line not in absent] + absent_ranks(facts)
    return replace(
        metas[0],
        state=max((meta.state for meta in metas), key=_severity),
        command=first.command,
        settings=first.settings,
        created=max(meta.created for meta in metas),
        facts=facts,
        lost=tuple(lost),
        tables=rows,
    )


def _severity(state: str) -> int:
    return _STATES.index(state) if state in _STATES else len(_STATES)


def _cubins(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Each piece of machine code once, with the kernels that ran of it on any host."""
    rows = pd.concat(tables, ignore_index=True).astype({"source": str})
    kernels = rows.groupby("hash")["functions"].agg(
        lambda names: "\n".join(sorted({n for text in names for n in text.split("\n") if n}))
    )
    rows = rows.drop_duplicates("hash").sort_values("hash", ignore_index=True)
    return rows.assign(functions=rows["hash"].map(kernels))


def _files_of(meta: Meta, process: str) -> Iterator[str]:
    """The table files that hold the process's rows and no other's."""
    engine = process.startswith("engine")
    digits = process.removeprefix("engine" if engine else "rank")
    for name in meta.tables:
        table, _, rest = name.rpartition("-rank")
        mine = rest == f"{digits}.parquet" and (table in OF_SCHEDULERS) == engine
        if mine and table not in SHARED_TABLES:
            yield name


def _move(path: Path, shift: Shift) -> None:
    """Rewrites one table file, a row group at a time, whole or not at all."""
    with replacing(path) as temporary, pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        with pq.ParquetWriter(temporary, schema, **parquet_options(schema)) as writer:
            for index in range(file.num_row_groups):
                group = file.read_row_group(index)
                writer.write_table(moved(group, shift).cast(schema))
