"""The command lines of NVIDIA Nsight Systems: how vLLM runs under nsys, and what nsys does later.

Nothing is started here. Options: `nsys profile --help`, `nsys stop --help` and `nsys export --help`
of nsys 2022.4 and 2023.4, and NVIDIA's user guide for later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_prof.errors import CommandError
from spark_prof.profiler.commands import Command, find_program, scan_options

REPORT_SUFFIX = ".nsys-rep"
UNIMPORTED_SUFFIX = ".qdstrm"
"""What nsys writes while it records, and leaves where it cannot make the report."""

PROFILE_OPTIONS = (
    # Kernels and API calls; NVTX for the marks by which the two clocks are compared. System calls
    # (osrt) are left out: Python's threads make many, and none of them is about a kernel.
    "--trace=cuda,nvtx",
    # By default a CUDA graph is one row: no kernel in it has a name.
    "--cuda-graph-trace=node",
    # vLLM's engine and workers may be forked without exec.
    "--trace-fork-before-exec=true",
    # Both cost time on the processor and say nothing about kernels.
    "--sample=none",
    "--cpuctxsw=none",
    # The end of the recording is not the end of the command; a server goes on.
    "--kill=none",
    # Without nsys nobody would wait for what the command leaves behind either.
    "--wait=primary",
    # The report is exported afterwards, where its progress and its failure can be told.
    "--export=none",
    "--force-overwrite=true",
)
"""Recording begins with the command, because vLLM captures its graphs while it starts."""

_RAY_OPTION = "--ray-workers-use-nsight"
_EXECUTOR = "--distributed-executor-backend"


def profile_command(nsys: Path, command: Command, report: Path, session: str) -> list[str]:
    """The command line that runs a command under nsys.

    Args:
        nsys: the program.
        command: what starts vLLM.
        report: the report to write, without its suffix.
        session: the name by which nsys_tool.stop_command finds this run.

    Raises:
        CommandError: nsys would not see vLLM through this command.
    """
    program = find_program(command.argv)
    if command.kind == "container":
        raise CommandError(
            f"nsys does not see into a container that {program.name} starts; install spark-prof "
            "and Nsight Systems in the image and run 'spark-prof record --backend nsys' inside, "
            "or leave --backend out"
        )
    if "sudo" in command.argv[: program.index]:
        raise CommandError(
            "sudo drops what nsys sets for the processes that it watches; "
            "write 'sudo spark-prof record --backend nsys ...' instead"
        )
    options = [*PROFILE_OPTIONS, f"--session-new={session}", f"--output={_escaped(report)}"]
    return [str(nsys), "profile", *options, *command.argv]


def runs_on_ray(command: Command) -> bool:
    """Whether a vLLM command line asks for workers that Ray starts, outside its process tree."""
    if command.kind not in ("vllm-serve", "vllm-bench"):
        return False
    start = find_program(command.argv).index
    words = command.argv[start:]
    for at, word in enumerate(words):
        options, _ = scan_options([word.replace("_", "-")], 0, "")
        if not options or options[0].name not in (_EXECUTOR, _RAY_OPTION):
            continue
        if options[0].name == _RAY_OPTION:
            return True
        value = options[0].value or (words[at + 1] if at + 1 < len(words) else "")
        if value == "ray":
            return True
    return False


def with_ray_workers(argv: Sequence[str]) -> list[str]:
    """The command line with vLLM's own option that lets Ray start each worker under nsys.

    vLLM 0.24 to 0.33 pass Ray `-t cuda,cudnn,cublas --cuda-graph-trace=node`.
    """
    given = any(word.partition("=")[0].replace("_", "-") == _RAY_OPTION for word in argv)
    return [*argv] if given else [*argv, _RAY_OPTION]


def _escaped(path: Path) -> str:
    """The path as nsys takes it: it puts numbers and names where it sees a percent sign."""
    return str(path).replace("%", "%%")
