"""Hands out the events of an nsys export, a bucket at a time and process by process.

An export may have as many texts of NVTX ranges as ranges: each is looked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from spark_prof.arrays import Flags, Int64s
from spark_prof.traces.foreign import NamesModule, category
from spark_prof.traces.readers.nsys_file import ID_MASK, PROCESS_SHIFT, NsysFile
from spark_prof.traces.readers.nsys_scan import NESTED, NVTX, OPEN, Buckets, Scan, decoded
from spark_prof.traces.scopes import ModuleRanges, groups

_OPERATOR = r", (seq|op_id|sizes|input_op_ids) = .*"
"""What torch.autograd.profiler.emit_nvtx writes behind a name, different for each call."""

_MOST_NAMES = 1 << 20


@dataclass(frozen=True)
class RangeTexts:
    """The texts of some ranges."""

    codes: Int64s
    texts: pa.StringArray  # all texts, each once

    def category(self, rows: Int64s) -> pd.Categorical:
        """The texts of some of the ranges."""
        used, codes = np.unique(self.codes[rows], return_inverse=True)
        texts = self.texts.take(pa.array(used)).to_pandas()
        return pd.Categorical.from_codes(codes, pd.Index(texts))


def read_texts(table: pa.Table, export: NsysFile) -> RangeTexts:
    """The texts of NVTX events: their own, else those that they name by number."""
    texts_of_events = table["text"].combine_chunks()
    codes = texts_of_events.indices.to_numpy().astype(np.int64)
    texts = _valid(texts_of_events.dictionary)
    numbers = table["textId"].to_numpy()
    empty = np.flatnonzero(pc.equal(texts, "").to_numpy(zero_copy_only=False))
    registered = np.flatnonzero(np.isin(codes, empty) & (numbers >= 0)) if len(empty) else empty
    if len(registered):
        which, unique = pd.factorize(numbers[registered])
        strings = export.strings(int(number) for number in unique)
        codes[registered] = len(texts) + which
        registered_texts = pa.array(
            [strings.get(int(number), "") for number in unique], pa.string()
        )
        texts = pa.concat_arrays([texts, registered_texts])
    once = texts.dictionary_encode()
    if len(once.dictionary) < len(texts):
        codes, texts = once.indices.to_numpy().astype(np.int64)[codes], once.dictionary
    return RangeTexts(codes, texts)


class ModuleNames:
    """Numbers the names of modules."""

    def __init__(self, names_module: NamesModule) -> None:
        self._names_module = lru_cache(_MOST_NAMES)(names_module)
        self._number_by_name: dict[str, int] = {}
        self.names: list[str] = []

    def numbers(self, texts: pa.StringArray) -> Int64s:
        """The number of each text's name, -1 for one that names no module."""
        if pc.any(pc.match_substring(texts, " = ")).as_py():
            texts = pc.replace_substring_regex(texts, pattern=_OPERATOR, replacement="")
        once = texts.dictionary_encode()
        number_of = [self._number(name) for name in once.dictionary.to_pylist()]
        numbers: Int64s = np.array(number_of, np.int64)[once.indices.to_numpy()]
        return numbers

    def _number(self, name: str) -> int:
        number = self._number_by_name.get(name, -1)
        if number < 0 and self._names_module(name) and len(self.names) < _MOST_NAMES:
            number = self._number_by_name[name] = len(self.names)
            self.names.append(name)
        return number


def _valid(texts: pa.StringArray) -> pa.StringArray:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array(decoded(texts), pa.string())
    return texts


Columns = Mapping[str, Int64s]

_LIBRARIES = (
    "nccl",
    "cublas",
    "cudnn",
    "cusparse",
    "cufft",
    "cusolver",
    "cccl",
    "nvshmem",
    "rapids",
)
"""Words in the names of NVTX domains in which libraries mark their own calls, never a model's."""


@dataclass(frozen=True)
class RangeRows:
    """NVTX ranges and marks of one process in order of their start, times as in the export."""

    start: Int64s
    end: Int64s  # OPEN where it had not ended
    thread: Int64s
    module: Int64s  # the number of the module that it names, -1 for none
    nested: Flags  # whether it is a push/pop range
    name: pd.Categorical
    domain: pd.Categorical

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def none(cls) -> RangeRows:
        """No ranges."""
        none = np.empty(0, np.int64)
        text = category(none, [""])
        return cls(none, none, none, none, none.astype(bool), text, text)

    def modules(self) -> ModuleRanges:
        """Those that name modules."""
        rows = np.flatnonzero(self.module >= 0)
        return ModuleRanges(self.start[rows], self.end[rows], self.thread[rows], self.module[rows])


@dataclass(frozen=True)
class Events:
    """An export whose events lie in buckets."""

    export: NsysFile
    scan: Scan
    buckets: Buckets
    names: ModuleNames
    # The number of each process in the trace, by its global id; the events of others are passed
    # over.
    numbers: Mapping[int, int]

    def begin(self, bucket: int) -> int:
        """When a bucket begins, in the export's time."""
        return int(self.buckets.bounds[bucket - 1]) if bucket else -OPEN

    def columns(self, table: str, bucket: int, owner: str) -> dict[int, Columns]:
        """The columns of a bucket's rows, by the number of the process that they are of."""
        rows_table = self.buckets.read(table, bucket)
        if rows_table is None:
            return {}
        arrays = {name: rows_table[name].to_numpy() for name in rows_table.column_names}
        return {
            self.numbers[process]: {name: values[rows] for name, values in arrays.items()}
            for process, rows in groups(arrays[owner] >> PROCESS_SHIFT)
            if process in self.numbers
        }

    def ranges(self, bucket: int) -> dict[int, RangeRows]:
        """The NVTX ranges and marks of a bucket, by the number of their process."""
        table = self.buckets.read(NVTX, bucket)
        if table is None:
            return {}
        texts = read_texts(table, self.export)
        modules = self.names.numbers(texts.texts)
        return {
            self.numbers[process]: self._rows(table, process, rows, texts, modules)
            for process, rows in groups(table["globalTid"].to_numpy() >> PROCESS_SHIFT)
            if process in self.numbers
        }

    def _rows(
        self, table: pa.Table, process: int, rows: Int64s, texts: RangeTexts, modules: Int64s
    ) -> RangeRows:
        start = table["start"].to_numpy()[rows]
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            rows, start = rows[order], start[order]
        event, thread, number, end = (
            table[name].to_numpy()[rows] for name in ("eventType", "globalTid", "domainId", "end")
        )
        which, numbers = pd.factorize(number)
        domains = [self._domain(process, int(number)) for number in numbers]
        models = np.array(
            [not any(word in name.lower() for word in _LIBRARIES) for name in domains]
        )
        nested = np.isin(event, NESTED)
        module = np.where(nested & models[which], modules[texts.codes[rows]], -1)
        return RangeRows(
            start=start,
            end=end,
            thread=thread & ID_MASK,
            module=module,
            nested=nested,
            name=texts.category(rows),
            domain=category(which, domains),
        )

    def _domain(self, process: int, number: int) -> str:
        text = self.scan.domains.get((process, number), "")
        named = self.scan.domain_ids.get((process, number), -1)
        return text or self.export.strings([named]).get(named, "")
