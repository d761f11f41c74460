"""What to write instead of `docker exec`: a container beside the running one, like it.

A container that runs can be given no mount any more, and its `exec` passes on no Ctrl-C. One of the
same image with the same folders, GPUs and network has all that its server needs.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from spark_prof.profiler.program import scan_options
from spark_prof.redact import HIDDEN, redacted

_ASK_SECONDS = 20.0
_VALUED = "-e --env --env-file -u --user -w --workdir --detach-keys --index"
_LONGEST = 600


def instead_of_exec(engine: Sequence[str], words: Sequence[str]) -> str:
    """The `run` that starts what an `exec` would; empty where the container does not answer.

        instead_of_exec(["docker"], ["-it", "box", "vllm", "serve", "m"]) ==
            "docker run --rm --volumes-from box --gpus all --ipc=host IMAGE vllm serve m"

    Args:
        words: behind `exec`.
    """
    options, at = scan_options(words, 0, _VALUED)
    if at >= len(words):
        return ""
    name, inside = words[at], words[at + 1 :]
    container = _inspected([*engine, "inspect", name])
    config, host = container.get("Config"), container.get("HostConfig")
    if not isinstance(config, dict) or not isinstance(host, dict):
        return ""
    passed = (o for o in options if o.value and o.name not in ("--detach-keys", "--index"))
    passed_words = [word for option in passed for word in (option.name, str(option.value))]
    line = [
        *engine, "run", "--rm", "--volumes-from", name, *_of_host(host),
        *_variables(engine, config), *passed_words, str(config.get("Image") or "IMAGE"), *inside,
    ]  # fmt: skip
    text = shlex.join(redacted(line))
    return text if text.isprintable() and len(text) <= _LONGEST else ""


def _of_host(host: Mapping[str, Any]) -> list[str]:
    words = []
    if host.get("DeviceRequests") or host.get("Runtime") == "nvidia":
        words += ["--gpus", "all"]
    devices = [str(device.get("PathOnHost")) for device in host.get("Devices") or ()]
    words += ["--device", "nvidia.com/gpu=all"] if any("nvidia" in d for d in devices) else []
    for option, key in (("--ipc", "IpcMode"), ("--network", "NetworkMode")):
        if (value := str(host.get(key) or "")) in ("host", "none"):
            words.append(f"{option}={value}")
    size = host.get("ShmSize")
    if isinstance(size, int) and size > 64 << 20 and "--ipc=host" not in words:
        words.append(f"--shm-size={size}")
    return words


def _variables(engine: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """What the container was given beside what its image has; a secret by its name alone."""
    image = _inspected([*engine, "image", "inspect", str(config.get("Image"))]).get("Config")
    if not isinstance(image, dict):
        return []
    beside_image = [
        text for text in config.get("Env") or () if text not in (image.get("Env") or ())
    ]
    words: list[str] = []
    for text in beside_image:
        if not text.startswith(("PATH=", "HOSTNAME=", "HOME=", "container=")):
            hidden = HIDDEN in redacted(["-e", text])[1]
            words += ["-e", text.partition("=")[0] if hidden else text]
    return words


def _inspected(words: Sequence[str]) -> Mapping[str, Any]:
    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
        process = subprocess.run(
            words, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        )
        first = json.loads(process.stdout)[0]
        return first if isinstance(first, dict) else {}
    return {}
