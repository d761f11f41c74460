"""Which programs a recorded command line may start to be printed as a command again.

Of each only what is listed: vLLM itself, the wrappers that choose its processor and its priority,
and a container of vLLM's images that is given GPUs, ports and caches. A shell, a script and a
module of Python can be anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_prof.rules.harmless_options import PATH

_NUMBER = "-?[0-9]{1,6}"
_CPUS = r"all|[!+]?[0-9]{1,5}([,-][!+]?[0-9]{1,5}){0,63}"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


@dataclass(frozen=True)
class Prefix:
    """A program in front of another that changes nothing of what that does."""

    name: str
    example: str  # in front of a program; it is a test
    options: Mapping[str, str]  # the shape of the value of each; empty for a switch
    argument: str = ""  # shape of a word between the options and the program


PREFIXES: tuple[Prefix, ...] = (
    Prefix("ionice", "ionice -c 2", {"-c": _NUMBER, "-n": _NUMBER, "--class": _NUMBER}),
    Prefix("nice", "nice -n 10", {"-n": _NUMBER, "--adjustment": _NUMBER}),
    Prefix("nohup", "nohup", {}),
    Prefix(
        "numactl", "numactl -N 0 --membind=0",
        {
            **dict.fromkeys(("-N", "-m", "-C"), _CPUS),
            **dict.fromkeys(("--cpunodebind", "--membind", "--physcpubind"), _CPUS),
            **dict.fromkeys(("-i", "--interleave", "-p", "--preferred"), _CPUS),
            **dict.fromkeys(("-l", "--localalloc"), ""),
        },
    ),
    Prefix("setsid", "setsid -w", {"-w": "", "--wait": ""}),
    Prefix("taskset", "taskset -c 0-7", {"-a": "", "-c": ""}, r"[0-9a-fx,-]{1,64}"),
    Prefix("time", "time -v", {"-v": "", "-p": ""}),
    Prefix("timeout", "timeout 600", {}, r"[0-9]{1,9}[smhd]?"),
    Prefix("uv", "uv run", {}, "run"),
)  # fmt: skip

CONTAINERS = ("docker", "nerdctl", "podman")
COMPOSES = ("docker-compose", "podman-compose")
"""Beside `docker compose`: they start a service of a compose file."""

CONTAINER_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("--init", "--rm", "--interactive", "--tty", "-i", "-it", "-t", "-ti"), ""),
    **dict.fromkeys(("-d", "--detach"), ""),
    **dict.fromkeys(("--shm-size", "--memory", "-m"), "[0-9]{1,6}[bkmgBKMG]?"),
    **dict.fromkeys(
        ("-p", "--publish"), r"([0-9]{1,3}(\.[0-9]{1,3}){3}:)?[0-9]{1,5}:[0-9]{1,5}(/tcp)?"
    ),
    **dict.fromkeys(("--network", "--net"), "host|bridge"),
    "--cpus": r"[0-9]{1,4}(\.[0-9]{1,3})?",
    "--cpuset-cpus": _CPUS,
    "--device": r"nvidia\.com/gpu=(all|[0-9]{1,2})",
    "--gpus": r"all|[0-9]{1,2}|\"?device=[0-9]{1,2}(,[0-9]{1,2}){0,15}\"?",
    "--ipc": "host|private|shareable",
    "--name": _NAME,
    "--platform": "linux/(amd64|arm64)",
    "--pull": "always|missing|never",
    "--runtime": "nvidia",
    "--ulimit": "(memlock|stack|nofile)=-?[0-9]{1,12}(:-?[0-9]{1,12})?",
}
"""Options of `docker run` and the shape of their values; mounts and variables are beside them."""

SERVICE = _NAME
COMPOSE_FILE = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}(\.[A-Za-z0-9_-]{1,32}){0,3}\.ya?ml"
COMPOSE_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("-f", "--file"), COMPOSE_FILE),
    **dict.fromkeys(("-p", "--project-name", "--profile"), _NAME),
}
"""Options before `run`: of a file that lies where the command is typed, and nowhere else."""
SERVICE_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("--rm", "--service-ports", "--no-deps", "--quiet-pull", "-T", "-P", "-q"), ""),
    **{name: CONTAINER_OPTIONS[name] for name in ("-p", "--publish", "--name", "--pull")},
}
"""Options of `compose run`; the image and what is mounted are those of the reader's own file."""

_TAG = r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
IMAGES = (
    rf"((docker\.io/)?vllm/vllm-[a-z0-9-]{{1,40}}|nvcr\.io/nvidia/(vllm|pytorch)|rocm/vllm(-dev)?"
    rf"|vllm(-[a-z0-9-]{{1,40}})?){_TAG}"
)
"""Images of vLLM's own project and of the GPUs' makers; one without an owner is built here."""

_SYSTEM = "bin|boot|dev|etc|lib|lib32|lib64|libx32|proc|root|run|sbin|sys|usr|var"
MOUNTED = rf"{_NAME}|(?!/({_SYSTEM})(/|$)|.*\.\.(/|$))({PATH})|/root/\.cache(/{_NAME}){{0,4}}"
"""What is mounted: a volume by its name, or a folder that is not the system's."""
_CACHES = "cache|checkpoints|data|hf|hf-cache|hf_cache|huggingface|mnt|model|models|weights"
MOUNTED_AT = rf"(/root|/home/{_NAME})/\.cache(/{_NAME}){{0,4}}|/({_CACHES})(/{_NAME}){{0,6}}"
"""Where: a cache, or a folder of models. Nothing below can be code that the image runs."""
MOUNT_MODES = "ro|rw|z|Z"

PASSED_ON = ("CUDA_VISIBLE_DEVICES", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "NVIDIA_VISIBLE_DEVICES")
"""Variables that a container may be given by their name: the value is that of who types it."""

STARTED_VARIABLES: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": r"[0-9]{1,2}(,[0-9]{1,2}){0,15}",
    "HF_HUB_OFFLINE": "[01]",
    "NVIDIA_VISIBLE_DEVICES": r"all|[0-9]{1,2}(,[0-9]{1,2}){0,15}",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:(True|False)",
    "VLLM_LOGGING_LEVEL": "DEBUG|INFO|WARNING|ERROR",
}
"""Variables beside vLLM's own that choose GPUs, and what is said."""

SERVERS = ("vllm.entrypoints.openai.api_server",)
"""Modules of Python that are vLLM's server: its arguments follow."""
LAUNCHERS = ("vllm.entrypoints.cli.main",)
"""Modules that are the program `vllm`."""

DEMO = "demo.workload"
DEMO_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("--compile", "--show-tokens"), ""),
    **dict.fromkeys(("--prompt", "--tokens", "--rounds", "--tensor-parallel"), "[0-9]{1,9}"),
    "--batch": r"[0-9]{1,6}(,[0-9]{1,6}){0,31}",
    "--graphs": "[A-Z_]{1,40}",
    "--memory": r"[0-9]{1,2}(\.[0-9]{1,6})?",
}
"""This repository's own offline workload, which `make demo` and its recordings run."""

ATTACHED = r"(https?://)?(127\.0\.0\.1|localhost|\[::1\]|0\.0\.0\.0)(:[0-9]{1,5})?/?|:?[0-9]{1,5}"
"""A server of this machine, as `record --attach` takes it."""
