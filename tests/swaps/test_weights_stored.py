"""The classes and parameters of the table are those of vLLM.

Looked at are the sources of the vLLM that is installed, and of those in the folders that the
environment variable VLLM_SOURCES names, with `:` between them. All rows were found in 0.24.0,
0.26.0, 0.27.1, 0.29.0, 0.31.0, 0.32.0 and 0.33.0, but for those of `_ONLY`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from spark_prof.swaps.weights_stored import EXPERTS, LINEAR, StoredAs, method_of, stored_as
from tests.rows import each_row

_ONLY = {
    "ModelOptNvFp4LinearMethod": "before 0.31",
    "ModelOptNvFp4W4A16LinearMethod": "before 0.31",
    "ModelOptFp8LinearMethod": "before 0.31",
    "ModelOptFp8PcPtLinearMethod": "before 0.31",
    "ModelOptLinearMethod/KNvfp4Static": "since 0.31",
    "ModelOptLinearMethod/KFp8StaticTensor": "since 0.31",
    "ModelOptLinearMethod/KFp8StaticChannel": "since 0.31",
}


def sources() -> Iterator[Path]:
    found = importlib.util.find_spec("vllm")
    if found is not None and found.origin is not None:
        yield Path(found.origin).parent
    for folder in filter(None, os.environ.get("VLLM_SOURCES", "").split(":")):
        yield Path(folder)


SOURCES = list(sources())


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
                if isinstance(method, ast.FunctionDef) and "create_weights" in method.name
                for node in ast.walk(method)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            if strings:
                found[owner.name] = strings
    return found


def names(row: StoredAs, prefixes: tuple[str, ...]) -> set[str]:
    own = {row.weight, row.global_scale} if row.format != "plain" else {row.weight}
    own |= {row.scale} if row.format != "plain" else set()
    return {prefix + name for prefix in prefixes for name in own if name}


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_the_rows_are_vllm_s(source: Path) -> None:
    classes = registered(source)
    for rows, prefixes in ((LINEAR, ("",)), (EXPERTS, ("w13_", "w2_"))):
        for row in rows:
            owner = row.method.rpartition("/")[2]
            if owner in classes:
                assert names(row, prefixes) <= classes[owner], row.method
            else:
                assert row.method in _ONLY, row.method


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_each_format_is_there_in_each_version(source: Path) -> None:
    classes = registered(source)
    for rows in (LINEAR, EXPERTS):
        here = {row.format for row in rows if row.method.rpartition("/")[2] in classes}
        assert here == {row.format for row in rows}


ATTRIBUTES = (
    ("fused_moe/routed_experts.py", "RoutedExperts", "moe_config quant_method activation"
     " swiglu_limit swiglu_alpha swiglu_beta apply_router_weight_on_input _expert_map"),
    ("fused_moe/config.py", "FusedMoEConfig", "moe_parallel_config hidden_dim hidden_dim_unpadded"
     " intermediate_size intermediate_size_per_partition_unpadded is_lora_enabled tp_size dp_size"
     " pcp_size"),
    ("fused_moe/config.py", "FusedMoEParallelConfig", "use_ep enable_eplb is_sequence_parallel"),
    ("fused_moe/activation.py", "MoEActivation", "is_gated silu swigluoai swigluoai_uninterleave"),
    ("fused_moe/runner/moe_runner.py", "MoERunner", "routed_experts router _fse_fuse_gate"),
    ("fused_moe/router/fused_moe_router.py", "FusedMoERouter", "eplb_state"),
    ("fused_moe/router/base_router.py", "BaseRouter", "top_k global_num_experts"),
    ("fused_moe/router/fused_topk_router.py", "FusedTopKRouter", "renormalize scoring_func"),
    ("fused_moe/router/fused_topk_bias_router.py", "FusedTopKBiasRouter", "renormalize"
     " scoring_func e_score_correction_bias routed_scaling_factor _hash_indices_table"),
    ("fused_moe/router/grouped_topk_router.py", "GroupedTopKRouter", "renormalize scoring_func"
     " e_score_correction_bias routed_scaling_factor num_expert_group topk_group"
     " num_fused_shared_experts"),
    ("layernorm.py", "RMSNorm", "weight variance_epsilon variance_size_override"),
    ("layernorm.py", "GemmaRMSNorm", "weight variance_epsilon"),
    ("linear.py", "LinearBase", "input_size quant_method tp_size"),
    ("linear.py", "ReplicatedLinear", ""),
    ("vocab_parallel_embedding.py", "VocabParallelEmbedding", "embedding_dim quant_method tp_size"),
    ("vocab_parallel_embedding.py", "ParallelLMHead", ""),
)  # fmt: skip
"""Files of vLLM's layers, classes, and what is read of them."""


@each_row("source", SOURCES)
@each_row(("file", "name", "attributes"), ATTRIBUTES)
def test_what_is_read_of_a_class_is_there(
    source: Path, file: str, name: str, attributes: str
) -> None:
    tree = ast.parse((source / "model_executor" / "layers" / file).read_text())
    found = [
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name
    ]
    assert found
    words: set[str] = set()
    for node in ast.walk(found[0]):
        if isinstance(node, ast.Attribute | ast.FunctionDef):
            words.add(node.attr if isinstance(node, ast.Attribute) else node.name)
        elif isinstance(node, ast.Constant | ast.Name):
            words.add(str(node.value) if isinstance(node, ast.Constant) else node.id)
    assert set(attributes.split()) <= words


def test_no_row_is_there_twice() -> None:
    for rows in (LINEAR, EXPERTS):
        assert len({row.method for row in rows}) == len(rows)


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
