"""What no engine can run, said before one is started: absent kernels, models without weights.

An engine takes minutes to say the same. Only what is certain is refused: what runs inside a
container or behind a wrapper such as srun may see other files and other GPUs than this host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_options import with_options
from spark_prof.ab.machine import may_have_gpu
from spark_prof.ab.measuring import MeasuredShape, impossible_by_options
from spark_prof.ab.sides import OWN_KERNELS, Side
from spark_prof.analyzers.ceilings.config import Config
from spark_prof.errors import CommandError
from spark_prof.profiler.commands import option_value
from spark_prof.rules.tune_candidates import LAYER_MODELS
from spark_prof.swaps.swap_settings import Swap
from spark_prof.traces.checkpoint import LFS_POINTER, Checkpoint, read_checkpoint

KERNELS_OF_SLOT: Mapping[str, tuple[str, ...]] = {
    "layer": OWN_KERNELS,
    **dict.fromkeys(("qkv", "o", "mlp", "lm_head"), OWN_KERNELS),
    **dict.fromkeys(("moe", "router"), ("spark_prof", "spark_prof!")),
    "norm": (),
}
"""Kernels of this package by the slot that they are for."""
_ABSENT = {
    "norm": "spark_prof has no kernel for a norm alone; give norm=FILE.py:FUNCTION",
    "moe": "it is for the weight of one matrix, and experts have many; give moe=spark_prof",
    "router": "it is for the weight of one matrix; give router=spark_prof",
}
_NO_GPU = (
    "kernels of this package need an NVIDIA GPU, and there is none here; run it where the GPU is, "
    "or give FILE.py:FUNCTION"
)
_NO_EXPERTS = "the model has no experts, by its config.json; leave it out"
_WHOLE_FILES = (None, "auto", "hf", "safetensors", "pt", "mistral")
"""Values of --load-format with which vLLM reads the folder's own files of weights."""
_LOCAL_WRAPPERS = frozenset(
    ["env", "ionice", "nice", "nohup", "numactl", "setsid", "stdbuf", "taskset", "time", "timeout"]
)
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
_POINTER_BYTES = 1024  # larger than any Git LFS pointer


def refuse(command: EngineCommand, sides: Iterable[Side]) -> None:
    """Raises CommandError where the model cannot be loaded, or a side cannot be run.

    refuse(engine_command(["vllm", "serve", "m"]), [parse_side("norm=spark_prof")])
    """
    if why := why_no_model(command):
        raise CommandError(why)
    for side in sides:
        if why := why_no_side(command, side):
            raise CommandError(why)


def refuse_shapes(
    command: EngineCommand,
    sides: Iterable[Side],
    shapes: Sequence[MeasuredShape],
    *,
    refuse_any: bool,
) -> None:
    """Raises CommandError where options that were typed forbid what is to be measured.

    refuse_shapes(command, [Side()], [Shape("decode", 64, 128)], refuse_any=True)

    Args:
        refuse_any: one that is forbidden is enough; else all have to be.
    """
    for side in sides:
        arguments = with_options(command.arguments, side.options)
        why = [impossible_by_options(shape, arguments) for shape in shapes]
        forbidden = any(why) if refuse_any else bool(why) and all(why)
        if forbidden:
            raise CommandError(f"nothing can be measured: {next(filter(None, why))}")


def why_no_side(command: EngineCommand, side: Side, *, anywhere: bool = False) -> str:
    """Why a side cannot be run, in one line; empty where it may.

    Args:
        anywhere: it is to run on another machine than this one.
    """
    gpu = anywhere or not _runs_here(command) or may_have_gpu()
    return next(filter(None, (_why_no_swap(command, swap, gpu=gpu) for swap in side.swaps)), "")


def why_no_model(command: EngineCommand) -> str:
    """Why vLLM cannot load the model of a command, in one line; empty where it may."""
    folder = _folder(command)
    if folder is None:
        return ""
    files = [path for path in folder.iterdir() if path.is_file()]
    if not any(path.name in ("config.json", "params.json") for path in files):
        content = "files of weights, but no config.json" if _of_weights(files) else "no config.json"
        return f"{folder} has {content}, so vLLM cannot load it; give the folder of a model"
    if option_value(command.arguments, "--load-format") not in _WHOLE_FILES:
        return ""
    anyway = "or add --load-format dummy for random ones, whose answers say nothing"
    weights = _of_weights(files)
    if not weights:
        return f"{folder} has no files of weights; download them, {anyway}"
    if pointers := [path.name for path in weights if _is_pointer(path)]:
        return (
            f"{pointers[0]} of {folder} is a Git LFS pointer, not the weights; git lfs pull "
            f"fetches them, {anyway}"
        )
    return ""


def _runs_here(command: EngineCommand) -> bool:
    """Whether the engine sees this host's files and GPUs, as far as its wrappers tell."""
    first = PurePath(command.prefix[0]).name if command.prefix else "env"
    return command.container is None and ("=" in first or first in _LOCAL_WRAPPERS)


def _folder(command: EngineCommand) -> Path | None:
    """The model's folder as the engine sees it; None where this host does not tell."""
    if not command.model or not _runs_here(command):
        return None
    folder = Path(command.model)
    with suppress(OSError):
        return folder if folder.is_dir() else None
    return None


def _of_weights(files: Iterable[Path]) -> list[Path]:
    return [path for path in files if path.suffix in _WEIGHTS]


def _is_pointer(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        return path.stat().st_size < _POINTER_BYTES and file.read(64).startswith(LFS_POINTER)
    return False


def _why_no_swap(command: EngineCommand, swap: Swap, *, gpu: bool) -> str:
    if swap.kernel not in OWN_KERNELS:
        return ""
    words = f"{swap.slot}={swap.kernel}"
    if swap.kernel not in KERNELS_OF_SLOT[swap.slot]:
        return f"{words}: {_ABSENT[swap.slot]}"
    if not gpu:
        return f"{words}: {_NO_GPU}"
    return next((f"{words}: {why}" for why in _unlike(command, swap)), "")


def _unlike(command: EngineCommand, swap: Swap) -> Iterator[str]:
    """Why the model has no such layer, by its configuration."""
    checkpoint = _checkpoint(command)
    if checkpoint is None:
        return
    names = checkpoint.config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    if swap.slot == "layer" and architecture and architecture not in LAYER_MODELS:
        yield f"slot layer knows {', '.join(LAYER_MODELS)}, and this is {architecture}"
    if swap.slot in ("moe", "router") and architecture and not Config(checkpoint.config).experts:
        yield _NO_EXPERTS


def _checkpoint(command: EngineCommand) -> Checkpoint | None:
    folder = _folder(command)
    with suppress(CommandError):
        return read_checkpoint(folder) if folder else None
    return None
