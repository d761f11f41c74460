"""The reader of vLLM's sources: on sources made for it, and on real ones where they lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.vllm_oracles.__main__ import compared
from scripts.vllm_oracles.candidates import Format, order, values, verdict
from scripts.vllm_oracles.deployment import is_package_test, package_of
from scripts.vllm_oracles.source_tree import SourceTree
from scripts.vllm_oracles.table import cell
from tests.rows import each_row

FORM = Format(
    "--moe-backend", "nvfp4", "vllm.model_executor.layers.fused_moe.oracle.nvfp4", "select",
    "kNvfp4Static", "kNvfp4Dynamic",
)  # fmt: skip

SOURCES = {
    "envs": """
import os
environment_variables = {
    "VLLM_FAST": lambda: bool(int(os.getenv("VLLM_FAST", "1"))),
}
""",
    "config/kernel": """
from typing import Literal
MoEBackend = Literal["auto", "fast", "marlin", "asked_for", "never"]
""",
    "utils/things": """
def has_fast():
    raise RuntimeError("never run")
""",
    "platforms/__init__": "",
    "platforms/interface": """
import enum
from typing import NamedTuple
class PlatformEnum(enum.Enum):
    CUDA = enum.auto()
    ROCM = enum.auto()
class DeviceCapability(NamedTuple):
    major: int
    minor: int
    def to_int(self):
        return self.major * 10 + self.minor
class Platform:
    def is_cuda(self):
        return self._enum == PlatformEnum.CUDA
    def is_rocm(self):
        return self._enum == PlatformEnum.ROCM
    @classmethod
    def has_device_capability(cls, capability):
        return cls.get_device_capability().to_int() >= capability
    @classmethod
    def is_device_capability_family(cls, capability):
        return cls.get_device_capability().to_int() // 10 == capability // 10
""",
    "platforms/cuda": """
from .interface import Platform, PlatformEnum
class CudaPlatformBase(Platform):
    _enum = PlatformEnum.CUDA
""",
    "model_executor/layers/quantization/utils/quant_utils": """
import torch
from dataclasses import dataclass
@dataclass(frozen=True)
class QuantKey:
    dtype: torch.dtype
    static: bool
kNvfp4Static = QuantKey(torch.uint8, True)
kNvfp4Dynamic = QuantKey(torch.uint8, static=False)
""",
    "model_executor/layers/fused_moe/experts": """
from vllm.platforms import current_platform
from vllm.model_executor.layers.quantization.utils.quant_utils import kNvfp4Dynamic, kNvfp4Static
from vllm.utils.things import has_fast
class Base:
    @staticmethod
    def is_supported_config(cls, config, weight, activation):
        if not cls._supports_current_device():
            return False, "device"
        elif (weight, activation) not in cls.SCHEMES:
            return False, "scheme"
        return True, None
class Fast(Base):
    SCHEMES = [(kNvfp4Static, kNvfp4Dynamic)]
    @staticmethod
    def _supports_current_device():
        p = current_platform
        return p.is_cuda() and p.is_device_capability_family(120) and has_fast()
class Marlin(Base):
    SCHEMES = [(kNvfp4Static, kNvfp4Dynamic), (kNvfp4Static, None)]
    @staticmethod
    def _supports_current_device():
        return current_platform.has_device_capability(75)
class Amd(Marlin):
    @staticmethod
    def _supports_current_device():
        return current_platform.is_rocm()
class Sized(Marlin):
    @classmethod
    def is_supported_config(cls, self, config, weight, activation):
        ok, reason = Marlin.is_supported_config(self, config, weight, activation)
        if ok and config.strange_size % 128 != 0:
            return False, "size"
        return ok, reason
""",
    "model_executor/layers/fused_moe/activation": """
from enum import Enum
class MoEActivation(Enum):
    SILU = "silu"
""",
    "model_executor/layers/fused_moe/oracle/nvfp4": """
from enum import Enum
from vllm import envs
from vllm.platforms import current_platform
class NvFp4MoeBackend(Enum):
    AMD = "AMD"
    FAST = "FAST"
    MARLIN = "MARLIN"
    SIZED = "SIZED"
    ASKED_FOR = "ASKED_FOR"
def backend_to_kernel_cls(backend):
    from vllm.model_executor.layers.fused_moe.experts import Amd, Fast, Marlin, Sized
    return {NvFp4MoeBackend.AMD: [Amd], NvFp4MoeBackend.FAST: [Fast],
            NvFp4MoeBackend.MARLIN: [Marlin], NvFp4MoeBackend.SIZED: [Sized],
            NvFp4MoeBackend.ASKED_FOR: [Fast]}[backend]
def select(config, weight_key, activation_key):
    backends = [b for b in NvFp4MoeBackend if b != NvFp4MoeBackend.ASKED_FOR]
    if envs.is_set("VLLM_FAST") and not envs.VLLM_FAST:
        backends.remove(NvFp4MoeBackend.FAST)
    if current_platform.is_device_capability_family(90):
        backends.insert(0, backends.pop(backends.index(NvFp4MoeBackend.MARLIN)))
    if config.moe_backend != "auto":
        backends = {"fast": [NvFp4MoeBackend.FAST], "marlin": [NvFp4MoeBackend.MARLIN],
                    "asked_for": [NvFp4MoeBackend.ASKED_FOR]}.get(config.moe_backend)
        if not backends:
            raise ValueError(f"no {config.moe_backend}")
    for backend in backends:
        for k_cls in backend_to_kernel_cls(backend):
            supported, reason = k_cls.is_supported_config(k_cls, config, weight_key, activation_key)
            if supported:
                return backend, k_cls
    raise NotImplementedError("none")
""",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> SourceTree:
    folder = tmp_path_factory.mktemp("wheel")
    for name, text in SOURCES.items():
        path = folder / "vllm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for inner in (folder / "vllm").rglob("*"):
        if inner.is_dir() and not (inner / "__init__.py").exists():
            (inner / "__init__.py").write_text("")
    (folder / "vllm" / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    return SourceTree(folder)


def test_the_order_is_that_of_the_sources_on_each_gpu(tree: SourceTree) -> None:
    def names(capability: int, **environment: str) -> list[str]:
        return [each.backend for each in order(tree, FORM, capability, environment)[0]]

    assert names(121) == ["AMD", "FAST", "MARLIN", "SIZED"]
    assert names(90) == ["MARLIN", "AMD", "FAST", "SIZED"]
    assert names(121, VLLM_FAST="0") == ["AMD", "MARLIN", "SIZED"]
    assert values(tree, "--moe-backend") == ("fast", "marlin", "asked_for", "never")


def test_each_class_is_judged_by_its_own_test(tree: SourceTree) -> None:
    """What a package decides is told as such, and what only a shape decides is not claimed."""
    judged = {each.backend: verdict(tree, FORM, 121, each)[0] for each in order(tree, FORM, 121)[0]}
    assert {name: found.runs for name, found in judged.items()} == {
        "AMD": "no", "FAST": "needs", "MARLIN": "yes", "SIZED": "unknown",
    }  # fmt: skip
    assert judged["FAST"].needs == ("has_fast()",)
    assert "strange_size" in judged["SIZED"].needs[0]
    fast = next(each for each in order(tree, FORM, 90)[0] if each.backend == "FAST")
    assert verdict(tree, FORM, 90, fast)[0].runs == "no"


def test_a_cell_has_values_variables_and_what_is_only_asked_for(tree: SourceTree) -> None:
    found = cell(tree, FORM, 121)
    assert found["tries"] == [
        ["AMD", "no"], ["FAST", "needs"], ["MARLIN", "yes"], ["SIZED", "unknown"],
    ]  # fmt: skip
    assert [row["value"] for row in found["values"]] == ["fast", "marlin", "asked_for"]
    assert found["values"][0]["packages"] == ["fast"]
    assert [row.get("by_itself", True) for row in found["values"]] == [True, True, False]
    assert found["variables"] == [["VLLM_FAST", "0", ["FAST"]]]


def test_what_the_reader_cannot_follow_is_told(tmp_path: Path) -> None:
    path = tmp_path / "vllm/model_executor/layers/fused_moe/oracle"
    path.mkdir(parents=True)
    (path / "nvfp4.py").write_text("def select(config):\n    while config:\n        pass\n")
    for inner in (tmp_path / "vllm").rglob("*"):
        if inner.is_dir():
            (inner / "__init__.py").write_text("")
    (tmp_path / "vllm/__init__.py").write_text("")
    assert "while" in cell(SourceTree(tmp_path), FORM, 90)["cannot_tell"]


@each_row(
    ("condition", "package"),
    [
        ("has_flashinfer()", "flashinfer"),
        ("has_flashinfer_cutlass_fused_moe()", "flashinfer"),
        ("not importlib.util.find_spec('conch') is None", "conch"),
        ("importlib.import_module('b12x.gemm.blockscaled').is_supported()", "b12x"),
        ("has_nvidia_artifactory()", ""),
        ("torch.ops._C.something(90)", ""),
        ("moe_config.hidden_dim Mod 128 == 0", ""),
    ],
)
def test_packages_are_told_from_other_conditions(condition: str, package: str) -> None:
    assert package_of(condition) == package
    assert is_package_test(condition) is bool(package)


def test_the_table_is_that_of_the_sources(capsys: pytest.CaptureFixture[str]) -> None:
    """Where unzipped wheels lie: FOLDER/0.33.0/vllm; the release check runs it over all."""
    folder = Path(os.environ.get("SPARK_PROF_VLLM_SOURCES", "/nowhere"))
    wheels = sorted(folder.glob("*/vllm/envs.py"))
    if not wheels:
        pytest.skip("SPARK_PROF_VLLM_SOURCES names no folder with unzipped wheels")
    assert compared([wheels[-1].parents[1]]) == 0, capsys.readouterr().out
