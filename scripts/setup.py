"""Makes .venv and installs spark-prof in it, with what the words ask for; a second run is instant.

usage: python3 scripts/setup.py [EXTRA...]   an extra of pyproject.toml; `vllm` is the one that fits

`vllm` takes, in this order: the vLLM that this very python3 already has, where there is a GPU; the
GPU build; the CPU build. Where none can be had, .venv/no-vllm says why, and that is no error.
Needs nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "setup.log"
NO_VLLM = VENV / "no-vllm"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
"""Come with vLLM's CPU build, but as CUDA builds that do not load beside the CPU's torch."""

_NOISE = re.compile(r"^WARNING: Location '.*' is ignored")
_HOST = re.compile(r"(?:https?|file)://\S+|host='[^']*'")


class SetupError(Exception):
    """One line that says what went wrong and what to do."""


def main(requested: Sequence[str]) -> int:
    """Installs what is wanted and not there yet; returns the exit code."""
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - it is what this line is for
            version = platform.python_version()
            raise SetupError(f"spark-prof needs Python 3.11 or newer, {sys.executable} is "
                             f"{version}; try: make PYTHON=python3.12 ...")  # fmt: skip
        make_venv()
        extras = ["spark-prof", *sorted(set(requested) - {"vllm"})]
        missing = [extra for extra in extras if not is_done(extra)]
        if missing:
            names = [f"spark-prof's {e} tools" if e != "spark-prof" else e for e in missing]
            phase(f"installing {', '.join(names)} (under a minute)")
            pip("install", "--editable", editable(missing))
            for extra in missing:
                mark_done(extra)
        if "vllm" in requested and not is_done("vllm"):
            install_vllm()
            mark_done("vllm")
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: stopped; run it again to go on", file=sys.stderr)
        return 130
    return 0


def make_venv() -> None:
    """Makes .venv unless there is one that works; with a GPU it sees this python3's vLLM."""
    if PYTHON.exists() and subprocess.run([PYTHON, "-c", ""], capture_output=True).returncode == 0:
        return
    phase(f"making .venv with Python {platform.python_version()} (a few seconds)")
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise SetupError("cannot make .venv; on Debian and Ubuntu: apt install python3-venv")
    try:
        pip("install", "--upgrade", "pip")
    except SetupError:
        phase("pip could not be upgraded; going on with the one there is")
    if has_gpu() and can_import(sys.executable, "vllm"):
        # Unlike --system-site-packages this also works where python3 belongs to a venv itself.
        folders = [path for path in sys.path if path.endswith("-packages")]
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (VENV / "lib" / version / "site-packages" / "outer.pth").write_text("".join(lines))


def install_vllm() -> None:
    """Installs the vLLM that can run here, or leaves a note that says why there is none."""
    NO_VLLM.unlink(missing_ok=True)
    if has_gpu() and can_import(PYTHON, "vllm"):
        phase("using the vLLM that this python3 already has")
        return
    why = []
    try:
        if has_gpu():
            phase("installing vLLM for the GPU (5 to 10 minutes, several gigabytes)")
            pip("install", "--editable", editable(["vllm"]))
            return
    except SetupError as error:
        why.append(str(error))
    try:
        install_vllm_for_cpu()
    except SetupError as error:
        why.append(str(error))
        NO_VLLM.write_text("; ".join(why) + "\n")
        phase(f"no vLLM ({why[-1]}); going on with analysis only. To try again, remove .venv")


def install_vllm_for_cpu() -> None:
    """Installs vLLM's CPU build, and takes care that torch comes without CUDA.

    Raises:
        SetupError: there is none for this machine.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise SetupError(f"there is no vLLM build for {sys.platform} on {platform.machine()}")
    torch = torch_requirement()
    phase("installing torch for the CPU (1 to 2 minutes)")
    if is_cpu_build(torch):
        pip("install", torch)
    else:
        pip("install", "--extra-index-url", CPU_INDEX, f"{torch}+cpu")
    phase("installing vLLM for the CPU (2 to 4 minutes)")
    pip("install", "--editable", editable(["cpu"]))
    pip("uninstall", "--yes", *CUDA_BUILDS)


def torch_requirement() -> str:
    """The torch that pyproject.toml's extra `cpu` names."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements: list[str] = project["optional-dependencies"]["cpu"]
    return next(name for name in requirements if name.startswith("torch=="))


def is_cpu_build(requirement: str) -> bool:
    """Whether pip would install a build without CUDA; only its metadata is looked at."""
    output = pip("install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet",
                "--report", "-", requirement)  # fmt: skip
    metadata = json.loads(output[output.index("{") :])["install"][0]["metadata"]
    needs = metadata.get("requires_dist", [])
    return not any(name.startswith(("nvidia-", "cuda-", "triton")) for name in needs)


def has_gpu() -> bool:
    """Whether an NVIDIA GPU can be used here."""
    try:
        process = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0 and "GPU 0" in process.stdout


def can_import(python: str | Path, module: str) -> bool:
    """Whether that Python can import the module."""
    command = [str(python), "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, cwd=VENV).returncode == 0


def pip(*words: str) -> str:
    """Runs .venv's pip, logs what it says, and returns its standard output.

    Raises:
        SetupError: it failed.
    """
    command = [str(PYTHON), "-m", "pip", "--no-input", "--disable-pip-version-check", *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    errors = [line for line in ended.stderr.splitlines() if not _NOISE.match(line)]
    output = _HOST.sub("<package index>", "\n".join([ended.stdout, *errors]))
    with open(LOG, "a", encoding="utf-8") as log:
        log.write(f"$ pip {' '.join(words)}\n{output}\n")
    if ended.returncode:
        last = next(
            (line for line in reversed(output.splitlines()) if "ERROR" in line), "pip failed"
        )
        raise SetupError(f"{last.removeprefix('ERROR: ')}; see {LOG.relative_to(ROOT)}")
    return ended.stdout


def editable(extras: Sequence[str]) -> str:
    """How pip is told to install this checkout with extras."""
    names = ",".join(extra for extra in extras if extra != "spark-prof")
    return f".[{names}]" if names else "."


def is_done(part: str) -> bool:
    """Whether the part was installed as this checkout wants it."""
    stamp = VENV / f".done-{part}"
    return stamp.exists() and stamp.read_text() == fingerprint()


def mark_done(part: str) -> None:
    """Remembers that the part is installed."""
    (VENV / f".done-{part}").write_text(fingerprint())


def fingerprint() -> str:
    """Changes with whatever would change an installation."""
    parts = (ROOT / "pyproject.toml", Path(__file__))
    content = b"".join(path.read_bytes() for path in parts) + str(ROOT).encode()
    return hashlib.sha256(content).hexdigest()


def phase(line: str) -> None:
    """Shows what is going on."""
    print(f"setup: {time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
