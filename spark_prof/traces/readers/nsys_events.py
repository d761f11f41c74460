"""Hands out the events of an nsys export, a bucket at a time and process by process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from spark_prof.traces.readers.nsys_buckets import Buckets
from spark_prof.traces.readers.nsys_file import ID_MASK, PROCESS_SHIFT, NsysFile, category
from spark_prof.traces.readers.nsys_ranges import ModuleRanges
from spark_prof.traces.readers.nsys_scan import NESTED, NVTX, OPEN, Scan
from spark_prof.traces.readers.nsys_texts import ModuleNames, RangeTexts, read_texts
from spark_prof.traces.scopes import groups

Int64s = npt.NDArray[np.int64]
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
    """NVTX ranges and marks of one process in order of their start, times as in the export.

    Attributes:
        end: OPEN where it had not ended.
        module: the number of the module that it names, -1 for none.
        nested: whether it is a push/pop range.
    """

    start: Int64s
    end: Int64s
    thread: Int64s
    module: Int64s
    nested: npt.NDArray[np.bool_]
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
    """An export whose events lie in buckets.

    Attributes:
        names: what its ranges name.
        numbers: the number of each process in the trace, by its global id; the events of others
            are passed over.
    """

    export: NsysFile
    scan: Scan
    buckets: Buckets
    names: ModuleNames
    numbers: Mapping[int, int]

    def begin(self, bucket: int) -> int:
        """When a bucket begins, in the export's time."""
        return int(self.buckets.bounds[bucket - 1]) if bucket else -OPEN

    def columns(self, table: str, bucket: int, owner: str) -> dict[int, Columns]:
        """The columns of a bucket's rows, by the number of the process that they are of."""
        found = self.buckets.read(table, bucket)
        if found is None:
            return {}
        arrays = {name: found[name].to_numpy() for name in found.column_names}
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
