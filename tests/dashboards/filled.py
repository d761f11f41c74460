"""A report in which every field holds something, made from the types of the fields.

Its figures do not agree with each other. It shows that no field is forgotten: each must be drawn,
written as JSON and documented.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import numpy as np
import pandas as pd

from spark_prof.analyzers.model import Report

_Kind = typing.TypeVar("_Kind")

_WORDS = {
    "phase": "decode",
    "engine": "tensor-core",
    "precision": "bf16",
    "evidence": "sass",
    "conversion": "quantize",
    "component": "experts",
    "units": "kernel",
    "limiter": "memory",
    "grid": "4,2,1",
    "block": "128,1,1",
    "vendor": "NVIDIA",
    "compute_capability": "9.0",
    "basis": "collectives",
    "quantity": "output_token",
}
"""Where a field takes one of a few words; any other text is the field's name."""


def filled(text: str | None = None) -> Report:
    """The report; with a text, every field that takes any text has that one."""
    report = filled_as(Report, text)
    [size] = report.accounts
    whole = dataclasses.replace(size, batch_size=None)
    accounts = (dataclasses.replace(whole, phase="all"), whole, size)
    # What runs is of a component that has a part: launched by steps of another phase.
    name = size.parts[0].name
    runs = (dataclasses.replace(report.typical[0], component=name, name="", role="", calls=0.0),)
    return dataclasses.replace(report, accounts=accounts, typical=runs)


def filled_as(kind: type[_Kind], text: str | None = None) -> _Kind:
    """The same of any dataclass."""
    made: _Kind = _filled(kind, "", text)
    return made


def _filled(kind: Any, name: str, text: str | None) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        fields = (field for field in dataclasses.fields(kind) if field.init)
        return kind(**{f.name: _filled(hints[f.name], f.name, text) for f in fields})
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _filled(next(item for item in inside if item is not type(None)), name, text)
    if origin in (tuple, list):
        kinds = inside[:1] if inside[-1] is Ellipsis else inside
        return origin(_filled(item, name, text) for item in kinds)
    if origin is np.ndarray:
        return np.ones(3, typing.get_args(inside[1])[0])
    if kind is pd.DataFrame or inside[1:] == (Any,):
        # What a document is drawn of has no tables of steps and no facts in JSON.
        return kind() if origin is None else {}
    if origin is dict:
        return {text or name: _filled(inside[1], name, text)}
    if origin is typing.Literal:
        return inside[0]
    if isinstance(kind, typing.NewType):
        return _filled(kind.__supertype__, name, text)
    if kind is not str and isinstance(kind, type) and issubclass(kind, str):
        return kind(_filled(str, name, text))
    simple = {bool: True, int: 3, float: 0.5, str: _WORDS.get(name, text or name)}
    return simple[kind]
