"""Writes a bundle's tables, or a part of it, into a folder, as Parquet or as CSV for a spreadsheet.

Besides the tables of the bundle there is `placed-rank<rank>`: the kernels with their labels.
Parquet keeps meta.json, so that the folder is a bundle again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from spark_prof.analyzers.layer_consistency import label_kernels
from spark_prof.arrays import Flags
from spark_prof.errors import CommandError
from spark_prof.traces.bundle import ROWS, Bundle
from spark_prof.traces.machine_code import copy_cubins
from spark_prof.traces.tables import OF_SCHEDULERS, TABLES

_STEPS = re.compile(r"([0-9]{0,9}):([0-9]{0,9})")


@dataclass(frozen=True)
class Selection:
    """A part of a bundle; by default all of it."""

    ranks: tuple[int, ...] | None = None  # the ranks, None for all
    first: int | None = None  # the first step, None for no limit
    stop: int | None = None  # the step after the last one, None for no limit

    @property
    def all_steps(self) -> bool:
        """Whether no step is left out; what belongs to no step then counts too."""
        return self.first is None and self.stop is None

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return self.all_steps and self.ranks is None

    def ranks_of(self, bundle: Bundle) -> tuple[int, ...]:
        """The bundle's ranks that are selected."""
        ranks = bundle.ranks if self.ranks is None else tuple(sorted(set(self.ranks)))
        for rank in ranks:
            if rank not in bundle.ranks:
                bundle_ranks = ", ".join(map(str, bundle.ranks)) or "none"
                raise CommandError(f"{bundle.label} has no rank {rank}; it has {bundle_ranks}")
        return ranks

    def rows(self, step: pd.Series) -> Flags:
        """Which rows are selected, by their step."""
        number = step.to_numpy(np.int64)
        if self.all_steps:
            return np.ones(len(number), bool)
        first = max(self.first or 0, 0)
        inside: Flags = (number >= first) & (
            number < (np.iinfo(np.int64).max if self.stop is None else self.stop)
        )
        return inside


def parse_steps(text: str) -> tuple[int | None, int | None]:
    """Reads `A:B`, from step A up to but not including step B; either may be left out."""
    match = _STEPS.fullmatch(text)
    if match is None:
        raise CommandError(f"--steps {text!r:.40} is no A:B; write 10:20 for steps 10 to 19")
    first, stop = (int(part) if part else None for part in match.groups())
    if first is not None and stop is not None and first >= stop:
        raise CommandError(f"--steps {text} holds no step; write the lower number first")
    return first, stop


_OF_NO_RANK = (*OF_SCHEDULERS, "log")  # tables whose number is none of a worker's rank

_PART = "this is a part of a recording: export was asked for some steps or ranks only"

_FORMULA = r"^([=+\-@\t\r])"
"""What makes a spreadsheet take a text for a formula, after OWASP's page on CSV injection."""


def write_tables(bundle: Bundle, selection: Selection, folder: Path, kind: str) -> None:
    """Writes one file a table and rank as csv or parquet; of tables with a `step` some rows.

    Raises:
        CommandError: a rank is not there, or a table is damaged.
        OSError: the folder cannot be written.
    """
    ranks = selection.ranks_of(bundle)
    rows: dict[str, int] = {}
    for name in bundle.meta.tables:
        table, _, number = name.removesuffix(".parquet").rpartition("-rank")
        if table in _OF_NO_RANK or int(number) in ranks:
            path = folder / f"{table}-rank{number}.{kind}"
            batches = bundle.batches(table, int(number))
            rows[name] = _write(path, TABLES[table].schema, _selected(batches, selection))
    for rank in ranks:
        kernels = label_kernels(bundle, rank)
        whole = pa.Table.from_pandas(kernels, preserve_index=False).replace_schema_metadata()
        parts = (whole.slice(first, ROWS) for first in range(0, len(whole), ROWS))
        path = folder / f"placed-rank{rank}.{kind}"
        _write(path, whole.schema, _selected(parts, selection))
    if kind == "parquet":
        copy_cubins(bundle.path, folder)
        lost = bundle.meta.lost if selection.whole else (*bundle.meta.lost, _PART)
        replace(bundle.meta, tables=rows, lost=lost).write(folder)


def safe_texts(table: pa.Table) -> pa.Table:
    """A table for CSV: no text begins a formula, and what was not measured is empty."""
    return pa.table({name: _safe(table[name]) for name in table.column_names})


def _write(path: Path, schema: pa.Schema, batches: Iterator[pa.Table]) -> int:
    count = 0
    with ExitStack() as stack:
        if path.suffix == ".csv":
            plain = safe_texts(schema.empty_table()).schema
            writer = stack.enter_context(pyarrow.csv.CSVWriter(path, plain))
        else:
            writer = stack.enter_context(pq.ParquetWriter(path, schema, compression="zstd"))
        for batch in batches:
            count += len(batch)
            writer.write_table(safe_texts(batch) if path.suffix == ".csv" else batch)
    return count


def _selected(batches: Iterator[pa.Table], selection: Selection) -> Iterator[pa.Table]:
    """The selected rows; a table without steps belongs to all of them."""
    for batch in batches:
        if selection.all_steps or "step" not in batch.column_names:
            yield batch
        else:
            yield batch.filter(pa.array(selection.rows(batch["step"].to_pandas())))


def _safe(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        # One look at each distinct text, however many rows there are.
        chunks = [
            pa.DictionaryArray.from_arrays(c.indices, _quoted(c.dictionary)).dictionary_decode()
            for c in column.chunks
        ]
        return pa.chunked_array(chunks, pa.string())
    if pa.types.is_string(column.type):
        return _quoted(column)
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), None, column)
    return column


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts.cast(pa.string()), _FORMULA, r"'\1")
