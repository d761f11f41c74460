"""Shells complete commands, options and values as the script that is printed for them says."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from spark_prof.cli.app import app
from spark_prof.cli.completion import SCRIPTS, Shell, command_words
from tests.command_line import ran

ASKED = """source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_spark_prof
printf '%s\\n' "${COMPREPLY[@]}"
"""

ROWS: tuple[tuple[str, set[str], set[str]], ...] = (
    ("spark-prof re", {"record", "report"}, {"why", "--version"}),
    ("spark-prof ", {"report", "kernels", "completion"}, {"--version", "check"}),
    ("spark-prof --v", {"--version"}, {"report"}),
    ("spark-prof report my-run --sec", {"--section"}, {"--format"}),
    ("spark-prof report my-run --", {"--section", "--format", "--help"}, {"--attach", "--bs"}),
    ("spark-prof report --format ", {"text", "md", "html", "json"}, {"--out", "report"}),
    ("spark-prof report --format = j", {"json"}, {"text"}),
    ("spark-prof kernels ", {"bench", "check", "list", "template"}, {"report"}),
    ("spark-prof kernels check --dev", {"--device"}, {"--format"}),
    ("spark-prof kernels check --device c", {"cpu", "cuda"}, {"auto"}),
    ("spark-prof report --section kernels --la", {"--layer"}, set()),
    ("spark-prof record --backend ", {"auto", "cupti", "nsys", "torch"}, set()),
    ("spark-prof completion ", {"bash", "zsh", "fish"}, {"report"}),
)
"""What was typed, what has to be offered and what must not be; an empty last word is a Tab."""

NOTHING = (
    "spark-prof report my",  # files, which bash completes by itself
    "spark-prof report --out rep",
    "spark-prof record -- vllm --he",  # the command's words are not ours
)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    for shell in Shell:
        code, out, err = ran("completion", shell.value)
        assert (code, err) == (0, "")
        (folder / shell.value).write_text(out, encoding="utf-8")
    return {shell.value: folder / shell.value for shell in Shell}


def offered(script: Path, words: Sequence[str]) -> set[str]:
    """What bash's completion offers."""
    asked = ["bash", "--norc", "-c", ASKED, "bash", str(script), *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert not done.stderr
    return set(done.stdout.split())


def test_bash_offers_what_may_follow(scripts: dict[str, Path]) -> None:
    wrong = []
    for line, there, absent in ROWS:
        words = offered(scripts["bash"], line.split(" "))
        if there - words or absent & words:
            wrong.append((line, words))
    wrong += [
        (line, words) for line in NOTHING if (words := offered(scripts["bash"], line.split()))
    ]
    assert not wrong


def test_a_tab_in_a_real_bash(scripts: dict[str, Path], tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    words = ["bash", "--norc", "--noprofile", "-i"]
    environment = os.environ | {"PS1": "ready$ ", "TERM": "dumb", "HISTFILE": "/dev/null"}
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=tmp_path
    ) as process:
        os.close(theirs)
        written = until(terminal, b"ready$ ")
        os.write(terminal, f"source {scripts['bash']}; spark-prof() {{ echo ran:$*; }}\n".encode())
        written = until(terminal, b"ready$ ")
        os.write(terminal, b"spark-prof kern\tch\t--dev\tcu\t\n")
        written = until(terminal, b"ran:", b"ready$ ")
        os.write(terminal, b"exit\n")
        while True:
            try:
                if not os.read(terminal, 1 << 16):
                    break
            except OSError:  # its end
                break
    os.close(terminal)
    assert process.returncode == 0
    assert b"ran:kernels check --device cuda\r\n" in written


def until(terminal: int, *ends: bytes) -> bytes:
    """What is written up to these words, each after the one before."""
    written, place = b"", 0
    for end in ends:
        while (found := written.find(end, place)) < 0:
            written += os.read(terminal, 1 << 16)
        place = found + len(end)
    return written


def test_every_shell_reads_its_script(scripts: dict[str, Path]) -> None:
    assert set(SCRIPTS) == set(scripts)
    for shell, script in scripts.items():
        if shutil.which(shell):
            subprocess.run([shell, "-n", str(script)], check=True)


def test_fish_offers_what_may_follow(scripts: dict[str, Path]) -> None:
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    wrong = []
    for line, there, absent in ROWS:
        if " = " in line:  # fish keeps the word whole
            continue
        asked = f'source {scripts["fish"]}; complete --do-complete "{line}"'
        done = subprocess.run(["fish", "-N", "-c", asked], capture_output=True, text=True)
        words = {row.split("\t")[0] for row in done.stdout.splitlines()}
        if done.returncode or there - words or absent & words:
            wrong.append((line, words, done.stderr))
    assert not wrong


def test_all_commands_and_options_are_in_each(scripts: dict[str, Path]) -> None:
    commands = list(command_words(typer.main.get_command(app)))
    names = {command.path for command in commands}
    assert {("report",), ("kernels", "check"), ("completion",)} <= names
    for script in scripts.values():
        text = script.read_text(encoding="utf-8")
        for command in commands:
            assert all(word in text for word in command.path)
            long = [n for option in command.options for n in option.names if n.startswith("--")]
            assert all(name.removeprefix("--") in text for name in long)


def test_without_a_shell_it_says_what_to_type() -> None:
    code, out, err = ran("completion")
    assert (code, out) == (2, "")
    assert "spark-prof completion bash" in err
    assert err.count("\n") == 1
    assert ran("completion", "tcsh")[0] == 2
