"""The texts of NVTX ranges, of which an export may have as many as ranges, and what they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from spark_prof.traces.foreign import NamesModule
from spark_prof.traces.readers.nsys_file import NsysFile

Int64s = npt.NDArray[np.int64]

_OPERATOR = r", (seq|op_id|sizes|input_op_ids) = .*"
"""What torch.autograd.profiler.emit_nvtx writes behind a name, different for each call."""

_MOST_NAMES = 1 << 20


@dataclass(frozen=True)
class RangeTexts:
    """The texts of some ranges.

    Attributes:
        codes: the number of each range's text.
        texts: all texts, each once.
    """

    codes: Int64s
    texts: pa.StringArray

    def category(self, rows: Int64s) -> pd.Categorical:
        """The texts of some of the ranges."""
        used, codes = np.unique(self.codes[rows], return_inverse=True)
        texts = self.texts.take(pa.array(used)).to_pandas()
        return pd.Categorical.from_codes(codes, pd.Index(texts))


def read_texts(table: pa.Table, export: NsysFile) -> RangeTexts:
    """The texts of NVTX events: their own, else those that they name by number."""
    own = table["text"].combine_chunks()
    codes = own.indices.to_numpy().astype(np.int64)
    texts = _valid(own.dictionary)
    numbers = table["textId"].to_numpy()
    empty = np.flatnonzero(pc.equal(texts, "").to_numpy(zero_copy_only=False))
    registered = np.flatnonzero(np.isin(codes, empty) & (numbers >= 0)) if len(empty) else empty
    if len(registered):
        which, unique = pd.factorize(numbers[registered])
        known = export.strings(int(number) for number in unique)
        codes[registered] = len(texts) + which
        more = pa.array([known.get(int(number), "") for number in unique], pa.string())
        texts = pa.concat_arrays([texts, more])
    once = texts.dictionary_encode()
    if len(once.dictionary) < len(texts):
        codes, texts = once.indices.to_numpy().astype(np.int64)[codes], once.dictionary
    return RangeTexts(codes, texts)


class ModuleNames:
    """Numbers the names of modules.

    Args:
        names_module: says whether a text names one.

    Attributes:
        names: what names modules, by number.
    """

    def __init__(self, names_module: NamesModule) -> None:
        self._names_module = names_module
        self._known: dict[str, int] = {}
        self.names: list[str] = []

    def numbers(self, texts: pa.StringArray) -> Int64s:
        """The number of each text's name, -1 for one that names no module."""
        if pc.any(pc.match_substring(texts, " = ")).as_py():
            texts = pc.replace_substring_regex(texts, pattern=_OPERATOR, replacement="")
        once = texts.dictionary_encode()
        found = [self._number(name) for name in once.dictionary.to_pylist()]
        numbers: Int64s = np.array(found, np.int64)[once.indices.to_numpy()]
        return numbers

    def _number(self, name: str) -> int:
        number = self._known.get(name)
        if number is None:
            if len(self._known) >= _MOST_NAMES:
                self._known = {name: number for number, name in enumerate(self.names)}
            number = -1
            if self._names_module(name) and len(self.names) < _MOST_NAMES:
                number = len(self.names)
                self.names.append(name)
            self._known[name] = number
        return number


def decoded(column: pa.Array) -> Sequence[str]:
    """The texts of a column that may hold bytes which are no UTF-8."""
    return [value.decode("utf-8", "replace") for value in column.cast(pa.binary()).to_pylist()]


def _valid(texts: pa.StringArray) -> pa.StringArray:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array(decoded(texts), pa.string())
    return texts
