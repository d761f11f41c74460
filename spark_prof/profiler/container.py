"""Puts spark-prof into a command line that starts a container, by an image or by a compose file.

The image keeps its own Python and vLLM: the container gets spark-prof's Python files and the
bundle folder as two mounts, and the environment that turns recording on.
"""

from __future__ import annotations

import importlib.metadata
import os
import posixpath
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from spark_prof.errors import CommandError
from spark_prof.profiler.commands import with_plugin_allowed
from spark_prof.profiler.compose import RunLine, read_run, service_of, valued
from spark_prof.profiler.program import SHELLS, Option, scan_options
from spark_prof.profiler.vllm_names import NEWEST, OLDEST, is_supported
from spark_prof.rules.container_images import IMAGES, vllm_of_image
from spark_prof.rules.vllm_versions import has_option, takes, values_of

STAGING_TARGET = "/opt/spark-prof"
BUNDLE_TARGET = "/spark-prof-bundle"

# Sources, those of kernels among them, and the table of what was measured of these.
_COPIED = (".py", ".c", ".cu", ".cuh", ".h", ".json")


class Mount(NamedTuple):
    """A folder or file of this host that a container sees."""

    source: Path
    target: str  # where the container sees it
    writable: bool = False


def container_command(
    argv: Sequence[str],
    *,
    mounts: Sequence[Mount],
    environment: Mapping[str, str],
    background: bool = False,
) -> list[str]:
    """Returns a container command line with spark-prof's mounts and environment in its options.

    The package itself is one of the mounts, at `STAGING_TARGET`; without it Python's path stays.

    A name in environment that the user sets as well with -e is changed where it stands: PYTHONPATH
    and VLLM_PLUGINS keep what the user gave, any other takes our value.

    What an --env-file or the image sets cannot be seen: there a PYTHONPATH is replaced, and a
    VLLM_PLUGINS that leaves spark_prof out keeps it out.

    A terminal that the container would have for itself is left out (see `without_terminal`). The
    bundle folder must be writable by the user that the container runs as, and the staged files
    readable; that is the caller's to see to.
    """
    run = read_run(argv, background=background)
    service = service_of(run)
    mounted = _mount_targets(run.options) | (service.targets if service else frozenset())
    for target in (mount.target for mount in mounts):
        if target in mounted:
            raise CommandError(
                f"{target} is where spark-prof mounts its own folder; mount yours elsewhere"
            )
    # `-e NAME` passes on the engine's own value, and none if it has none.
    program = run.program
    outer = {} if program.cleared_by else dict(os.environ)
    outer |= dict(word.split("=", 1) for word in argv[: program.index] if "=" in word)
    set_here = [option for option in run.options if option.name in ("-e", "--env") and option.value]
    words = [str(option.value).partition("=") for option in set_here]
    values = {name: value if equals else outer.get(name) for name, equals, value in words}
    of_file = service.environment.items() if service else ()
    beside = {name: outer.get(name) if value is None else value for name, value in of_file}
    ours = dict(environment)
    if any(mount.target == STAGING_TARGET for mount in mounts):
        ours = _environment({**beside, **values}, environment)

    result = list(argv)
    for option, (name, _, _) in zip(set_here, words, strict=True):
        if name in ours:
            word = argv[option.position]
            result[option.position] = f"{word.removesuffix(str(option.value))}{name}={ours[name]}"
    added = [word for mount in mounts for word in ("-v", _mount_option(mount))]
    for name in (name for name in ours if name not in values):
        added += ["-e", f"{name}={ours[name]}"]
    result[run.end : run.end] = added
    return result


def without_terminal(argv: Sequence[str]) -> list[str]:
    """The command line without -i and -t, where a terminal would be the container's.

    In the terminal of a container Ctrl-C ends vLLM at once; without one spark-prof gets it first,
    and docker passes on what it is sent then. A shell in a container keeps its terminal.
    """
    run = read_run(argv)
    inside, end = run.inside, run.end
    runs = any(word[:1] == "-" and "c" in word for word in inside[1:3])  # bash -lc 'vllm serve m'
    if (inside and posixpath.basename(inside[0]) in SHELLS and not runs) or not (
        inside or run.start.compose
    ):
        return list(argv)
    if run.start.compose:  # makes a terminal by itself
        asks = {option.name for option in run.options} & {"-T", "--no-TTY", "--no-tty"}
        return [*argv[:end], *(() if asks else ("-T",)), *argv[end:]]
    takes_value, remaining, at = valued(run.start), list(argv[: run.start.begin]), run.start.begin
    names = set(takes_value.split())
    while at < end:
        option, _ = scan_options([argv[at]], 0, takes_value)
        values = 1 if option and option[-1].name in names and option[-1].value is None else 0
        remaining += filter(None, [_without_switches(argv[at], names)])
        remaining += argv[at + 1 : at + 1 + values]
        at += 1 + values
    return remaining + list(argv[end:])


def alone(argv: Sequence[str]) -> list[str]:
    """The command line of a service that starts no others, where it needs none.

    podman-compose 1.0 would start all that the file has.
    """
    run = read_run(argv)
    service = service_of(run)
    if service is None or not service.alone or "--no-deps" in {o.name for o in run.options}:
        return list(argv)
    return [*argv[: run.end], "--no-deps", *argv[run.end :]]


def _without_switches(word: str, valued: set[str]) -> str:
    """One word of `run` without -i and -t in it; empty where nothing else was."""
    if word in ("--tty", "--interactive", "--tty=true", "--interactive=true"):
        return ""
    if not word.startswith("-") or word.startswith("--") or "=" in word[:3]:
        return word
    switches = next((n for n, c in enumerate(word[1:]) if f"-{c}" in valued), len(word) - 1)
    left = word[1 : 1 + switches].replace("i", "").replace("t", "") + word[1 + switches :]
    return f"-{left}" if left else ""


def stage_package(folder: Path) -> None:
    """Copies spark-prof's source files into folder, with the entry point that vLLM looks for.

    Any user of a container may read them, whatever this process's umask is.
    """
    shutil.copytree(
        Path(__file__).parents[1],
        folder / "spark_prof",
        ignore=_everything_but_source,
        copy_function=shutil.copyfile,
    )
    try:
        version = importlib.metadata.version("spark-prof")
    except importlib.metadata.PackageNotFoundError:
        version = "0"  # a checkout on PYTHONPATH is not installed
    metadata = folder / f"spark_prof-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: spark-prof\nVersion: {version}\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nspark_prof = spark_prof.plugin:install\n"
    )
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _everything_but_source(folder: str, names: list[str]) -> set[str]:
    return {
        name
        for name in names
        if name == "__pycache__"
        or not (name.endswith(_COPIED) or os.path.isdir(os.path.join(folder, name)))
    }


def _environment(
    container_values: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, str]:
    from_container = {
        name: value
        for name in ("PYTHONPATH", "VLLM_PLUGINS")
        if (value := container_values.get(name)) is not None
    }
    merged = with_plugin_allowed({**environment, **from_container})
    path = merged.pop("PYTHONPATH", "")
    return {"PYTHONPATH": f"{STAGING_TARGET}:{path}".rstrip(":"), **merged}


def _mount_option(mount: Mount) -> str:
    # A relative source would name a volume; a colon would end it.
    source = str(mount.source.absolute())
    if ":" in source:
        raise CommandError(f"{source!r} has a colon, which -v cannot carry; use another folder")
    return f"{source}:{mount.target}{'' if mount.writable else ':ro'}"


def _mount_targets(options: Sequence[Option]) -> set[str]:
    targets = []
    for option in options:
        value = option.value or ""
        if option.name in ("-v", "--volume"):
            targets.append(value.split(":")[:2][-1])
        elif option.name == "--tmpfs":
            targets.append(value.split(":")[0])
        elif option.name == "--mount":
            fields = dict(field.partition("=")[::2] for field in value.split(","))
            targets += [fields[key] for key in ("target", "dst", "destination") if key in fields]
    return {posixpath.normpath(target) for target in targets}


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
