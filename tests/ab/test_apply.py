"""The environment that `--apply` prints, from a side and from a result."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.ab.accuracy_gate import GateVerdict
from spark_prof.ab.apply import lines_of, serve_line, side_of_result
from spark_prof.ab.result import AbOutcome, Gate, SideFacts, read_result, to_json
from spark_prof.ab.sides import parse_side
from spark_prof.cli import main as cli
from spark_prof.errors import CommandError
from spark_prof.swaps.swap_settings import SwapSettings
from tests.rows import each_row

SIDES = [
    "moe=spark_prof,lm_head=mxfp4",
    "moe=spark_prof! VLLM_USE_V2_MODEL_RUNNER=1 OMP_NUM_THREADS=4",
    "--moe-backend marlin",
    "--kv-cache-dtype fp8 --enforce-eager --max-num-seqs=4 lm_head=fp8",
]
"""Of which all is taken from a result."""

TYPED = [
    "X='a b' --y '{\"a\": 1, \"b\": 2}' o=fp8",
    "LD_PRELOAD=/tmp/x.so",
    "X='\"$(id)\"' Y=`id`\\\\ Z=é,A=",
    "--trust-remote-code --model=/tmp/x --hf-overrides '{}'",
]
"""Of which some has to be typed."""


def lines(side: str, **environment: str) -> list[str]:
    return list(lines_of(parse_side(side), environment))


def exported(found: list[str]) -> dict[str, str]:
    """What a shell would set."""
    words = [shlex.split(line)[1] for line in found if line.startswith("export ")]
    return dict(word.split("=", 1) for word in words)


@each_row("text", [*SIDES, *TYPED])
def test_a_shell_sets_what_the_plugin_reads(text: str) -> None:
    side = parse_side(text)
    found = exported(lines(text))
    swaps = SwapSettings.from_environment(found)
    assert (swaps.sides["a"] if swaps else ()) == side.swaps
    assert {n: v for n, v in found.items() if n != "SPARK_PROF_SWAPS"} == dict(side.environment)


def test_options_are_no_line_of_a_shell() -> None:
    assert lines("moe=marlin") == []
    assert serve_line(parse_side("moe=marlin")) == "vllm serve MODEL --moe-backend marlin"
    assert serve_line(parse_side("moe=fp8")) == ""


@pytest.mark.parametrize(
    ("plugins", "wanted"), [("", "spark_prof"), ("other", "other,spark_prof"), ("spark_prof", "")]
)
def test_the_plugin_is_allowed(plugins: str, wanted: str) -> None:
    found = exported(lines("moe=spark_prof", VLLM_PLUGINS=plugins))
    assert found.get("VLLM_PLUGINS", "") == wanted


@each_row("value", ["a\nb", "a\x1b[2J", "a\x85", "a\u2028b", "\u202e"])
def test_control_characters_are_printed_for_no_shell(value: str) -> None:
    with pytest.raises(CommandError, match="has a control character"):
        lines(f"X='{value}'")
    with pytest.raises(CommandError, match="nothing to apply"):
        lines("stock")


def result(tmp_path: Path, b: str, *, passed: bool = True, one: bool = True) -> Path:
    a, side = parse_side("stock"), parse_side(b)
    facts = [
        SideFacts(
            "a" if each is a else "b",
            each.name,
            ",".join(f"{swap.slot}={swap.kernel}" for swap in each.swaps),
            ("m", *each.options),
            dict(each.environment),
        )
        for each in (a, side)
    ]
    verdict = GateVerdict(passed, "kept", () if passed else ("no",), (), None, None, None, ())
    found = AbOutcome(
        model="m",
        mode="one engine" if one else "two engines",
        mode_why="",
        command=(),
        taken="",
        sides=(facts[0], facts[1]),
        gates=(Gate(1, verdict),),
    )
    path = tmp_path / "result.json"
    path.write_bytes(to_json(found))
    return path


@each_row("text", SIDES)
def test_a_result_gives_its_side_back(tmp_path: Path, text: str) -> None:
    side = parse_side(text)
    one = not (side.options or side.environment)
    path = result(tmp_path, text, one=one)
    for typed in (None, side):
        found = side_of_result(path, typed)
        assert found == side


@each_row("text", [*TYPED, "norm=KERNEL"])
def test_what_runs_code_has_to_be_typed_too(tmp_path: Path, text: str) -> None:
    kernel = tmp_path / "my kernel's.py"
    kernel.write_text("def build(layer): ...\n")
    text = text.replace("KERNEL", shlex.quote(f"{kernel}:build"))
    path = result(tmp_path, text, one=False)
    with pytest.raises(CommandError, match="not taken from a file alone") as raised:
        side_of_result(path)
    # The error says what to type, and that is enough.
    words = shlex.split(str(raised.value).partition("type it too: ")[2])
    assert words[:4] == ["spark-prof", "ab", "--apply", "--b"]
    assert words[5:] == ["--", str(path)]
    found, side = side_of_result(path, parse_side(words[4])), parse_side(text)
    assert found == side


def test_another_file_or_function_is_not_what_was_typed(tmp_path: Path) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("def build(layer): ...\ndef other(layer): ...\n")
    path = result(tmp_path, f"norm={tmp_path}/one.py:build", one=False)
    for other in ("norm=two.py:build", "norm=one.py:other", "o=one.py:build"):
        with pytest.raises(CommandError, match="not taken from a file alone"):
            side_of_result(path, parse_side(other.replace("=", f"={tmp_path}/")))


@each_row("named", ["one.py", "./one.py", "link.py", "FOLDER/x/../one.py"])
def test_one_file_may_be_written_in_several_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.py").write_text("def build(layer): ...\n")
    Path("link.py").symlink_to("one.py")
    Path("x").mkdir()
    path = result(tmp_path, "norm=one.py:build", one=False)
    text = path.read_text()
    path.write_text(text.replace(f"{tmp_path}/one.py", named.replace("FOLDER", str(tmp_path))))
    assert path.read_text() != text
    typed = parse_side("norm=one.py:build")
    # What is taken is what was typed.
    assert side_of_result(path, typed).swaps == typed.swaps


@each_row("more", ["o=fp8", "X=1", "--seed 1", "VLLM_USE_V2_MODEL_RUNNER=0"])
def test_what_is_typed_beside_a_result_is_the_result_s(tmp_path: Path, more: str) -> None:
    path = result(tmp_path, "moe=fp8 VLLM_USE_V2_MODEL_RUNNER=1", one=False)
    with pytest.raises(CommandError, match=r"side b of .* has no "):
        side_of_result(path, parse_side(more))


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        (("--moe-backend", "triton"), ("--moe-backend", "marlin"), ("--moe-backend", "marlin")),
        (("--seed", "1"), (), ()),
        (("--seed", "1"), ("--seed", "1"), ()),
        (
            ("--cudagraph-capture-sizes", "1"),
            ("--cudagraph-capture-sizes", "1", "2"),
            ("--cudagraph-capture-sizes", "1", "2"),
        ),
    ],
)
def test_options_are_those_in_which_the_sides_differ(
    tmp_path: Path, a: tuple[str, ...], b: tuple[str, ...], options: tuple[str, ...]
) -> None:
    found = read_result(result(tmp_path, "moe=fp8", one=False))
    sides = [
        replace(side, arguments=("m", *words))
        for side, words in zip(found.sides, (a, b), strict=True)
    ]
    path = tmp_path / "result.json"
    path.write_bytes(to_json(replace(found, sides=(sides[0], sides[1]))))
    assert side_of_result(path).options == options


def test_a_failed_gate_is_not_applied(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="fails the correctness gate") as raised:
        side_of_result(result(tmp_path, "o=fp8", passed=False))
    assert raised.value.exit_code == 1


def test_hidden_values_cannot_be_applied(tmp_path: Path) -> None:
    path = result(tmp_path, "HF_TOKEN=x o=fp8", one=False)
    path.write_text(path.read_text().replace('"HF_TOKEN": "x"', '"HF_TOKEN": "***"'))
    with pytest.raises(CommandError, match="hides a secret value"):
        side_of_result(path)


@each_row("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"kind": "spark-prof ab"}'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    for each in (path, tmp_path / "nothing", tmp_path):
        with pytest.raises(CommandError, match=str(tmp_path)):
            side_of_result(each)


@each_row(
    ("words", "serve"),
    [
        ("--b moe=fp8", "vllm serve MODEL"),
        ("--b moe=marlin", "vllm serve MODEL --moe-backend marlin"),
        ("--b moe=marlin -- docker run --rm --gpus all vllm/vllm-openai:v0.33.0 --model m",
         "docker run --rm --gpus all vllm/vllm-openai:v0.33.0 --model m --moe-backend marlin"),
    ],
)  # fmt: skip
def test_json_has_the_line_that_serves(
    words: str, serve: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["spark-prof", "ab", "--apply", "--format", "json", *words.split()]
    monkeypatch.setattr("sys.argv", typed)
    capsys.readouterr()
    assert cli.main() == 0
    record = json.loads(capsys.readouterr().out)
    assert record["serve"] == serve
