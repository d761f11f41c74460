"""The classes and parameters of the table are those of vLLM.

All rows were found in 0.24.0, 0.26.0, 0.27.1, 0.29.0, 0.31.0, 0.32.0 and 0.33.0, but for those of
`_ONLY`.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from spark_prof.swaps.live_weights import EXPERTS, LINEAR, StoredAs, method_of, stored_as
from tests.swaps.test_vllm_internals import SOURCES

_ONLY = {
    "ModelOptNvFp4LinearMethod": "before 0.31",
    "ModelOptNvFp4W4A16LinearMethod": "before 0.31",
    "ModelOptFp8LinearMethod": "before 0.31",
    "ModelOptFp8PcPtLinearMethod": "before 0.31",
    "ModelOptLinearMethod/KNvfp4Static": "since 0.31",
    "ModelOptLinearMethod/KFp8StaticTensor": "since 0.31",
    "ModelOptLinearMethod/KFp8StaticChannel": "since 0.31",
}


@cache
def registered(source: Path) -> dict[str, set[str]]:
    """The strings in `create_weights` of each class, which name the parameters, and its bases'."""
    found: dict[str, set[str]] = {}
    for path in sorted((source / "model_executor" / "layers").rglob("*.py")):
        text = path.read_text()
        if not re.search(r"register_parameter|register_params", text):
            continue
        for owner in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
            strings = {
                node.value
                for method in owner.body
                if isinstance(method, ast.FunctionDef)
                and ("create_weights" in method.name or method.name == "__init__")
                for node in ast.walk(method)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            # A name may be put together, of a prefix and what the constructor says.
            strings |= {f"{half}_{name}" for half in ("w13", "w2") for name in strings}
            if "create_weights" in ast.unparse(owner):
                found[owner.name] = strings
    return found


def names(row: StoredAs, prefixes: tuple[str, ...]) -> set[str]:
    own = {row.weight, row.global_scale} if row.format != "plain" else {row.weight}
    own |= {row.scale} if row.format != "plain" else set()
    own |= {row.fp8_block_scale} if row.format == "fp8" else set()
    return {prefix + name for prefix in prefixes for name in own if name}


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_the_rows_are_vllm_s(source: Path) -> None:
    classes = registered(source)
    for rows, prefixes in ((LINEAR, ("",)), (EXPERTS, ("w13_", "w2_"))):
        for method, row in rows.items():
            owner = method.rpartition("/")[2]
            if owner in classes:
                assert names(row, prefixes) <= classes[owner], method
            else:
                assert method in _ONLY, method


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_each_format_is_there_in_each_version(source: Path) -> None:
    classes = registered(source)
    for rows in (LINEAR, EXPERTS):
        here = {row.format for name, row in rows.items() if name.rpartition("/")[2] in classes}
        assert here == {row.format for row in rows.values()}


class ModelOptLinearMethod:
    def __init__(self) -> None:
        self.wkey = KFp8StaticChannel()


class KFp8StaticChannel:
    pass


class CompressedTensorsLinearMethod:
    pass


class CompressedTensorsW4A4Mxfp4:
    pass


class Module:
    def __init__(self, method: object, scheme: object = None) -> None:
        self.quant_method = method
        self.scheme = scheme


def test_a_method_is_named_with_what_it_hands_its_work_to() -> None:
    inside = Module(ModelOptLinearMethod())
    assert method_of(inside) == "ModelOptLinearMethod/KFp8StaticChannel"
    assert stored_as(inside, LINEAR).format == "fp8"
    beside = Module(CompressedTensorsLinearMethod(), CompressedTensorsW4A4Mxfp4())
    assert stored_as(beside, LINEAR).format == "mxfp4"
