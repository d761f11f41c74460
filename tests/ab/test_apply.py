"""The environment that `--apply` prints, from a side and from a result."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.ab.apply import lines_of, side_of_result
from spark_prof.ab.gate import Verdict
from spark_prof.ab.result import Gate, Result, SideFacts, to_json
from spark_prof.ab.sides import parse_side
from spark_prof.errors import CommandError
from spark_prof.swaps.settings import SwapSettings

SIDES = [
    "moe=spark_prof,lm_head=mxfp4",
    "moe=spark_prof VLLM_X=1",
    "--moe-backend marlin",
    "X='a b' --y '{\"a\": 1}' o=fp8",
]


def lines(side: str, **environment: str) -> list[str]:
    return list(lines_of(parse_side(side), environment))


def exported(found: list[str]) -> dict[str, str]:
    """What a shell would set."""
    words = [shlex.split(line)[1] for line in found if line.startswith("export ")]
    return dict(word.split("=", 1) for word in words)


@pytest.mark.parametrize("text", SIDES)
def test_a_shell_sets_what_the_plugin_reads(text: str) -> None:
    side = parse_side(text)
    found = exported(lines(text))
    swaps = SwapSettings.from_environment(found)
    assert (swaps.sides["a"] if swaps else ()) == side.swaps
    assert {n: v for n, v in found.items() if n != "SPARK_PROF_SWAPS"} == dict(side.environment)


def test_options_are_told() -> None:
    assert lines("moe=marlin") == ["# and start it with: vllm serve MODEL --moe-backend marlin"]


@pytest.mark.parametrize(
    ("plugins", "wanted"), [("", "spark_prof"), ("other", "other,spark_prof"), ("spark_prof", "")]
)
def test_the_plugin_is_allowed(plugins: str, wanted: str) -> None:
    found = exported(lines("moe=spark_prof", VLLM_PLUGINS=plugins))
    assert found.get("VLLM_PLUGINS", "") == wanted


def test_stock_is_nothing_to_apply() -> None:
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
    verdict = Verdict(passed, "kept", () if passed else ("no",), (), None, None, None, ())
    found = Result(
        "m", "one engine" if one else "two engines", "", (), "", (facts[0], facts[1]),
        gates=(Gate(1, verdict),),
    )  # fmt: skip
    path = tmp_path / "result.json"
    path.write_bytes(to_json(found))
    return path


@pytest.mark.parametrize("text", SIDES)
def test_a_result_gives_its_side_back(tmp_path: Path, text: str) -> None:
    side = parse_side(text)
    one = not (side.options or side.environment)
    found = side_of_result(result(tmp_path, text, one=one))
    assert replace(found, text="") == replace(side, text="")


def test_a_failed_gate_is_not_applied(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="fails the correctness gate") as raised:
        side_of_result(result(tmp_path, "o=fp8", passed=False))
    assert raised.value.exit_code == 1


def test_hidden_values_cannot_be_applied(tmp_path: Path) -> None:
    path = result(tmp_path, "HF_TOKEN=*** o=fp8", one=False)
    with pytest.raises(CommandError, match="hides a secret value"):
        side_of_result(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"kind": "spark-prof ab"}'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    for each in (path, tmp_path / "nothing", tmp_path):
        with pytest.raises(CommandError, match=str(tmp_path)):
            side_of_result(each)
