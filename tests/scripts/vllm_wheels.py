"""Small wheels that look like vLLM's, with what is wanted changed."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ENVS = """
import os
if TYPE_CHECKING:
    VLLM_A: bool = False
environment_variables: dict[str, Callable] = {
    "VLLM_A": lambda: os.getenv("VLLM_A", "0") == "1",
    "VLLM_KERNEL": env_with_choices("VLLM_KERNEL", "cuda", ["cuda", "triton"]),
    "CUDA_HOME": lambda: os.environ.get("CUDA_HOME"),
}
"""
KERNEL = '''
from typing import Literal
MoEBackend = Literal["auto", "triton", "marlin"]

class KernelConfig:
    """Text."""
    moe_backend: MoEBackend = "auto"
    """Which."""
    monokernel: bool = False
'''
COMPILATION = """
import enum

class CUDAGraphMode(enum.Enum):
    NONE = 0
    FULL = 2

class PassConfig:
    fuse_norm_quant: bool = None

class CompilationConfig:
    cudagraph_mode: "CUDAGraphMode | None" = None
    pass_config: PassConfig = None
"""
CONFIG = """
from vllm.config.compilation import CompilationConfig
DEFAULT_BREAKABLE_CUDAGRAPH_ARCHITECTURES = frozenset({"OneForCausalLM"})

class VllmConfig:
    compilation_config: CompilationConfig = None
"""
ARGUMENTS = """
from vllm.config import CompilationConfig, KernelConfig, VllmConfig

def add(parser):
    kernel_kwargs = get_kwargs(KernelConfig)
    moe_kwargs = kernel_kwargs["moe_backend"]
    parser.add_argument("--moe-backend", **moe_kwargs)
    parser.add_argument("--monokernel", **kernel_kwargs["monokernel"])
    vllm_kwargs = get_kwargs(VllmConfig)
    parser.add_argument("--compilation-config", "-cc", **vllm_kwargs["compilation_config"])
    parser.add_argument("--level", choices=["a", "b"])
    parser.add_argument("--device", choices=["a"] + (["b"] if found else []))
"""
WORKER = """
import os
from vllm.logger import init_logger
logger = init_logger(__name__)

class WorkerBase:
    def execute_model(self):
        logger.warning("Old warning of %s.", name)
        logger.info_once(f"Using {kernel!r} kernel")
        logger.debug("Not for people: kernel %s", x)

class Worker(WorkerBase):
    limit: int = 0

    def __init__(self, size, *, check=False):
        self.runner = os.environ.get("VLLM_UNLISTED")
"""

FILES: Mapping[str, str] = {
    "vllm/__init__.py": "",
    "vllm/envs.py": ENVS,
    "vllm/config/__init__.py": "from vllm.config.kernel import *\n"
    "from .compilation import CompilationConfig\nfrom .vllm import VllmConfig\n",
    "vllm/config/kernel.py": KERNEL,
    "vllm/config/compilation.py": COMPILATION,
    "vllm/config/vllm.py": CONFIG,
    "vllm/engine/arg_utils.py": ARGUMENTS,
    "vllm/v1/worker.py": WORKER,
}
"""A vLLM with one of everything that the tables have."""


NAMES = ("vllm.v1.worker:WorkerBase.execute_model", "vllm.v1.worker:Worker.limit")
"""Names that it has."""


def wheel(path: Path, version: str, changes: Mapping[str, str] | None = None) -> Path:
    """Writes a wheel; a change replaces a file."""
    file = path / f"vllm-{version}-cp312-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**FILES, **(changes or {})}.items():
            archive.writestr(name, text)
        archive.writestr("vllm/_C.abi3.so", b"\x7fELF" + bytes(1000))
        archive.writestr(f"vllm-{version}.dist-info/METADATA", f"Name: vllm\nVersion: {version}\n")
    return file


def sdist(path: Path, version: str) -> Path:
    """The same as an sdist."""
    file = path / f"vllm-{version}.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for name, text in {**FILES, "PKG-INFO": f"Version: {version}\n"}.items():
            member = tarfile.TarInfo(f"vllm-{version}/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return file


def folder(path: Path, version: str) -> Path:
    """The same unpacked, below a folder that is named as the version."""
    for name, text in FILES.items():
        (path / version / name).parent.mkdir(parents=True, exist_ok=True)
        (path / version / name).write_text(text)
    return path / version
