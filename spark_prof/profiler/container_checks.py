"""What a container lacks: a GPU, a Python, a vLLM that spark-prof supports. One line each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.profiler.compose import RunLine, service_of
from spark_prof.profiler.vllm_names import NEWEST, OLDEST, is_supported
from spark_prof.rules.container_images import IMAGES, vllm_of_image
from spark_prof.rules.vllm_versions import has_option, takes, values_of

_DRIVER = Path("/proc/driver/nvidia")
"""Exists where this host has an NVIDIA driver."""
_NO_GPU = re.compile(
    r"Failed to infer device type|No CUDA GPUs|Found no NVIDIA driver|libcuda\.so|no NVIDIA GPU",
    re.I,
)


def refuse_image(image: str) -> None:
    """Raises CommandError for an image whose vLLM, by its name, cannot be recorded.

    refuse_image("nvcr.io/nvidia/vllm:25.09-py3")  # has vLLM 0.10.1.1
    """
    vllm = vllm_of_image(image)
    if vllm is None or is_supported(vllm.version):
        return
    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    other = next(rule for rule in reversed(IMAGES) if is_supported(rule.has))
    raise CommandError(
        f"{image} has vLLM {vllm.version}, and spark-prof takes {oldest} to {newest}; use another "
        f"image, such as {other.example} with {other.has}"
    )


def refuse_options(image: str, words: Sequence[str]) -> None:
    """Raises CommandError for an option that the vLLM of an image does not have, by its name."""
    vllm = vllm_of_image(image)
    if vllm is None or not vllm.released:
        return
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            continue
        has = f"{image} has vLLM {vllm.version}, which"
        if has_option(name, vllm.version) is False:
            raise CommandError(f"{has} has no {name}; leave it out, or use another image")
        value = value if equals else following
        if takes(name, value, vllm.version) is False and values_of(name, vllm.version):
            values = ", ".join(values_of(name, vllm.version))
            raise CommandError(f"{has} takes no {name} {value}; it takes {values}")


def gpu_to_add(run: RunLine) -> str:
    """What gives the container a GPU; empty where it is given one.

    gpu_to_add(read_run(["podman", "run", "image"])) == "--device nvidia.com/gpu=all"
    """
    values = [f"{option.name} {option.value or ''}" for option in run.options]
    gpu_options = (
        r"--gpus |--device \S*(gpu|nvidia)|--runtime nvidia|--privileged|(-e|--env) NVIDIA_VIS"
    )
    service = service_of(run)
    if any(re.match(gpu_options, value) for value in values) or (service and service.gpu):
        return ""
    if service:
        return f"'gpus: all' in the service {run.target}"
    return "--device nvidia.com/gpu=all" if run.program.name == "podman" else "--gpus all"


def missing_gpu(run: RunLine) -> str:
    """What is said before a container starts without a GPU on a host that has one."""
    added = gpu_to_add(run) if _DRIVER.exists() else ""
    return f"the container is given no GPU, unless its runtime gives one: add {added}" * bool(added)


def why_it_failed(run: RunLine, code: int | None, logged: str) -> str:
    """What a container lacked, by its exit code and what it printed; empty where that is unknown.

    why_it_failed(run, 127, "sh: 1: exec: vllm: not found") == "image has no vllm"
    """
    service = service_of(run)
    image = service.image if service else run.target
    # What vLLM itself needs is missing where vLLM is.
    if re.search(r"No module named '?(vllm|msgspec|numpy|psutil|torch)\b", logged):
        return f"the Python of {image} has no vLLM; use an image that has it"
    if code in (126, 127):
        missing = re.search(r"(?:exec: )?\"?([\w./-]+)\"?: (?:executable file )?not found", logged)
        return f"{image} has no {missing[1] if missing else 'such program'}; use an image with vLLM"
    if _NO_GPU.search(logged) and (added := gpu_to_add(run)):
        return f"the container is given no GPU: add {added}"
    return ""
