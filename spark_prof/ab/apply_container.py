"""The container that serves side b: what was typed, with the side's variables, options and files.

spark-prof is one of the files, where the side swaps kernels: it is mounted, and no image changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from spark_prof.ab.apply import exports_of
from spark_prof.ab.command import EngineCommand, engine_command
from spark_prof.ab.engine_options import with_options
from spark_prof.ab.result import read_result
from spark_prof.ab.sides import Side
from spark_prof.analyzers.recorded_command import in_container, starting_words
from spark_prof.ending import temporary_folder
from spark_prof.errors import CommandError
from spark_prof.files import cache_folder
from spark_prof.profiler.container import STAGING_TARGET, Mount, container_command, stage_package


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
