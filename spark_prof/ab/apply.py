"""What `ab --apply` prints: variables that a shell evaluates, and options that a person reads.

A result is a file that somebody else may have written. What is taken from it alone chooses among
the kernels of this package, of installed packages and of vLLM, by tables of names and shapes. All
else, such as a kernel's file, counts only if the person at the command line types it too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from spark_prof.ab.command import EngineCommand, engine_command
from spark_prof.ab.engine_options import with_options
from spark_prof.ab.result import SideFacts, outcome_of, read_result
from spark_prof.ab.sides import (
    BACKENDS,
    OPTION_OF_SLOT,
    Side,
    grouped,
    is_own_or_installed,
    is_reserved,
    parse_side,
    quoted,
    side_words,
)
from spark_prof.analyzers.recorded_command import in_container, starting_words
from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.files import cache_folder
from spark_prof.profiler.commands import with_plugin_allowed
from spark_prof.profiler.container import STAGING_TARGET, Mount, container_command, stage_package
from spark_prof.rules.harmless_options import (
    harmless_configuration,
    harmless_option,
    harmless_variable,
)
from spark_prof.swaps.swap_settings import SLOTS, SWAPS_ENVIRONMENT, Swap, format_swaps, parse_swaps


def harmless_swap(swap: Swap) -> bool:
    """Whether a kernel's name is that of this package's or of an installed one, and no file's."""
    return bool(re.fullmatch("[A-Za-z0-9_-]+!?", swap.kernel)) and is_own_or_installed(swap.kernel)


def harmless_side(text: str) -> Side | None:
    """A side as a result writes it, if it only chooses kernels and sizes; None for any other.

    No file that it names is looked at.
    """
    try:
        groups = list(grouped(side_words(text)))
        if groups and all(_harmless_group(word, values) for word, values in groups):
            return parse_side(text)
    except CommandError:
        pass
    return None


def _harmless_group(word: str, values: Sequence[str]) -> bool:
    if word.startswith("-"):
        name, equals, value = word.partition("=")
        value = " ".join([*([value] if equals else ()), *values])
        return harmless_option((word, *values)) or harmless_configuration(name, value)
    return word == "stock" or _harmless_word(word)


def _harmless_word(word: str) -> bool:
    name, equals, value = word.partition("=")
    if not equals or not value.isprintable():
        return False
    if name not in SLOTS:
        return harmless_variable(name, value)
    return all(map(harmless_swap, parse_swaps(word))) or value in BACKENDS.get(
        OPTION_OF_SLOT.get(name, ""), ()
    )


_NAME = re.compile("[A-Z_][A-Z0-9_]*")
_LONGEST = 600
_Group = tuple[str, ...]


def side_of_result(path: Path, typed: Side | None = None) -> Side:
    """Side b of a result, if its gate passed (else exit code 1).

    Who types a side b at the command line so agrees to have of the result what is not taken from a
    file alone; what was typed must be in it.
    """
    typed = typed or Side()
    result = read_result(path)
    if outcome_of(result) == "gate failed":
        raise CommandError(
            f"{path}: side b fails the correctness gate, so it is not applied", exit_code=1
        )
    b = result.sides[1]
    swaps = tuple(_agreed(swap, typed.swaps) for swap in parse_swaps(b.swaps))
    groups = tuple(_grouped(_added(path, result.sides[0], b)))
    if any("***" in word for group in groups for word in group) or any(
        "***" in value for value in b.environment.values()
    ):
        raise CommandError(f"{path} hides a secret value of side b; give --b instead of the file")
    typed_groups = tuple(_grouped(typed.options))
    missing = [
        *(
            [f"{swap.slot}={swap.kernel}"]
            for swap in swaps
            if not harmless_swap(swap) and swap not in typed.swaps and _is_file(path, swap)
        ),
        *(
            [f"{name}={value}"]
            for name, value in b.environment.items()
            if not harmless_variable(name, value)
            and (name, value) not in typed.environment
            and _may_be_typed(path, name)
        ),
        *(group for group in groups if not harmless_option(group) and group not in typed_groups),
    ]
    if missing:
        raise _not_typed(path, [word for group in missing for word in group])
    extras = [
        *(f"{s.slot}={s.kernel}" for s in typed.swaps if s not in swaps),
        *(name for name, value in typed.environment if b.environment.get(name) != value),
        *(group[0] for group in typed_groups if group not in groups),
    ]
    if extras:
        raise CommandError(
            f"side b of {path} has no {extras[0]}; with a result --b repeats what is its own: "
            "leave it out, or give --b alone"
        )
    options = tuple(word for group in groups for word in group)
    return Side(swaps, options, tuple(b.environment.items()))


def exports_of(side: Side, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with which `vllm serve` runs a side."""
    if not (side.swaps or side.options or side.environment):
        raise CommandError("side b is stock, so there is nothing to apply; give --b moe=spark_prof")
    variables = dict(side.environment)
    if side.swaps:
        variables = {SWAPS_ENVIRONMENT: format_swaps(side.swaps), **variables}
        allowed = with_plugin_allowed({**environment, **variables}).get("VLLM_PLUGINS")
        if allowed is not None and allowed != environment.get("VLLM_PLUGINS"):
            variables["VLLM_PLUGINS"] = allowed
    for name, value in variables.items():
        if not value.isprintable():
            raise CommandError(
                f"{name}={value} has a control character, which is printed for no shell; set it "
                "yourself"
            )
    return variables


def lines_of(side: Side, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The variables of `exports_of` as lines that a shell may evaluate."""
    for name, value in exports_of(side, environment).items():
        yield f"export {name}={shlex.quote(value)}"


def serve_line(side: Side) -> str:
    """The command to start, for a person to read; empty where the variables are all."""
    return f"vllm serve MODEL {shlex.join(side.options)}" if side.options else ""


def _added(path: Path, a: SideFacts, b: SideFacts) -> tuple[str, ...]:
    """The arguments of b that are not a's, from the option on in which they first differ."""
    words = enumerate(b.arguments)
    same = next((at for at, word in words if a.arguments[at : at + 1] != (word,)), None)
    if same is None:
        return ()
    while same and not _is_option(b.arguments[same]):
        same -= 1
    if not _is_option(b.arguments[same]):
        raise CommandError(f"{path}: the arguments of side b are not a's and more; give --b alone")
    return b.arguments[same:]


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[0-9.]*", word)


def _grouped(words: Sequence[str]) -> Iterator[_Group]:
    """Each option with the words of its values."""
    group: list[str] = []
    for word in words:
        if group and _is_option(word):
            yield tuple(group)
            group = []
        group.append(word)
    if group:
        yield tuple(group)


def _agreed(swap: Swap, typed: Sequence[Swap]) -> Swap:
    """The swap as it was typed, where that is the same function of the same file; else itself."""
    for other in typed:
        if swap.slot == other.slot and _file_of(swap) == _file_of(other):
            return other
    return swap


def _file_of(swap: Swap) -> tuple[str, str]:
    path, colon, function = swap.kernel.rpartition(":")
    if not (colon and path.endswith(".py") and path.isprintable()):
        return swap.kernel, ""
    return os.path.realpath(path), function


def _is_file(path: Path, swap: Swap) -> bool:
    """True; raises CommandError for a kernel that is neither known here nor a file's."""
    if ".py:" in swap.kernel:
        return True
    raise CommandError(
        f"{path}: there is no kernel {swap.kernel[:80]}; install the package that brings it"
    )


def _may_be_typed(path: Path, name: str) -> bool:
    """True; raises CommandError for what is not a name that a side can set."""
    if _NAME.fullmatch(name) and not is_reserved(name):
        return True
    raise CommandError(f"{path} sets {name:.80}, which a side cannot; give --b instead of the file")


def _not_typed(path: Path, words: Sequence[str]) -> CommandError:
    """What to type so that the words are taken from a result."""
    side = shlex.quote(" ".join(map(quoted, words)))
    command = f"spark-prof ab --apply --b {side} -- {shlex.quote(str(path))}"
    if not (command.isprintable() and len(command) < _LONGEST):
        return CommandError(
            f"{path} asks for {words[0][:80]!r}, which is not taken from a file and cannot be "
            "shown whole; give --b instead of the file"
        )
    return CommandError(
        f"{path} asks for what can run code or change more than kernels, so that it is not taken "
        f"from a file alone; if you know and want it, type it too: {command}"
    )


def container_serve(side: Side, engine: EngineCommand) -> list[str]:
    """The command line that serves a side in an engine's container.

    container_serve(parse_side("--max-num-seqs 4"), engine_command(["docker", "run", "i", ...]))
    """
    variables = exports_of(side, {})
    words = with_options(engine.text, side.options)
    mounts = []
    if side.swaps:
        mounts.append(Mount(kept_package(), STAGING_TARGET))
        folders = [Path(os.path.abspath(file)).parent for file in _files(side)]
        mounts += [Mount(folder, str(folder)) for folder in dict.fromkeys(folders)]
    return container_command(words, mounts=mounts, environment=variables, background=True)


def engine_of_result(path: Path) -> EngineCommand | None:
    """The container that a result was measured in; None where its engine ran on a host.

    CommandError where its words are more than is taken from a file alone.
    """
    command = read_result(path).command
    words = command[command.index("--") + 1 :] if "--" in command else ()
    if not in_container(words):
        return None
    starting = starting_words(words)
    if not starting:
        raise CommandError(
            f"{path} was measured in a container whose command line is more than is taken from a "
            "file alone; type it: spark-prof ab --apply --b SIDE -- docker run ..."
        )
    return engine_command(starting)


def kept_package() -> Path:
    """The folder of this user with spark-prof's files as a container needs them, made if need be.

    Its name is that of its content, so that a server which runs keeps what it was started with.
    """
    cache = cache_folder()
    if cache is None:
        raise CommandError("no home folder is known for spark-prof's files; set XDG_CACHE_HOME")
    with temporary_folder() as staging:
        stage_package(staging)
        files = sorted(path for path in staging.rglob("*") if path.is_file())
        content = hashlib.sha256()
        for path in files:
            content.update(str(path.relative_to(staging)).encode() + path.read_bytes())
        folder = cache / f"package-{content.hexdigest()[:12]}"
        if folder.is_dir():
            return folder
        try:
            cache.mkdir(parents=True, exist_ok=True)
            unfinished = cache / f".{folder.name}.{os.getpid()}"
            shutil.copytree(staging, unfinished)
            os.replace(unfinished, folder)
        except OSError as error:
            raise CommandError(f"cannot write {folder}: {error.strerror or error}") from error
    return folder


def _files(side: Side) -> Sequence[str]:
    """The files of a person's own kernels."""
    paths = (swap.kernel.rpartition(":")[0] for swap in side.swaps)
    return [path for path in paths if path.endswith(".py")]
