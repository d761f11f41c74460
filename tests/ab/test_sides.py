"""What a side's words mean, and which sides can live in one engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_prof.ab.sides import BACKENDS, OWN_KERNELS, choose_mode, parse_side, with_formats
from spark_prof.errors import CommandError
from spark_prof.swaps.spec import SLOTS, Swap
from tests.rows import each_row

KERNEL = "def build(layer):\n    return None\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "my_kernel.py"
    path.write_text(KERNEL)
    return path


@each_row("text", ["", "stock", " stock , ", "stock stock"])
def test_nothing_is_stock(text: str) -> None:
    side = parse_side(text)
    assert (side.swaps, side.options, side.environment, side.name) == ((), (), (), "stock")


@each_row("separator", [" ", ",", ", ", "  ,\n"])
def test_words_of_every_kind(separator: str) -> None:
    words = ["moe=spark_prof", "VLLM_X=1", "lm_head=mxfp4", "--kv-cache-dtype", "fp8"]
    side = parse_side(separator.join(words))
    assert side.swaps == (Swap("moe", "spark_prof"), Swap("lm_head", "mxfp4"))
    assert side.environment == (("VLLM_X", "1"),)
    assert side.options == ("--kv-cache-dtype", "fp8")


@each_row("slot", SLOTS)
@each_row("kernel", OWN_KERNELS)
def test_own_kernels_are_swaps(slot: str, kernel: str) -> None:
    assert parse_side(f"{slot}={kernel}").swaps == (Swap(slot, kernel),)


@each_row("backend", BACKENDS["--moe-backend"])
def test_backends_of_experts_are_an_option(backend: str) -> None:
    side = parse_side(f"moe={backend}")
    assert (side.swaps, side.options) == ((), ("--moe-backend", backend))


@each_row("slot", ["qkv", "o", "mlp", "lm_head"])
def test_backends_of_linear_layers_are_one_option(slot: str) -> None:
    side = parse_side(f"{slot}=cutlass")
    assert side.options == ("--linear-backend", "cutlass")
    assert side.notes == (
        f"{slot}=cutlass is vLLM's --linear-backend cutlass, for all linear layers at once",
    )


def test_backends_are_those_of_vllm() -> None:
    """Of the vLLM that is installed here; the tables are of all versions together."""
    pytest.importorskip("vllm")
    from typing import get_args

    from vllm.config import kernel

    assert set(get_args(kernel.MoEBackend)) <= set(BACKENDS["--moe-backend"])
    assert set(get_args(kernel.LinearBackend)) <= set(BACKENDS["--linear-backend"])


@each_row(
    ("text", "options", "rest"),
    [
        ("--enforce-eager moe=spark_prof", ("--enforce-eager",), "moe=spark_prof"),
        ("-tp 2 -1", ("-tp", "2", "-1"), ""),
        ("--sizes 1 2 4 A=1", ("--sizes", "1", "2", "4"), ""),
        ("--linear-backend=marlin", ("--linear-backend=marlin",), ""),
        ('--x \'{"a": 1, "b": 2}\'', ("--x", '{"a": 1, "b": 2}'), ""),
    ],
)
def test_options_take_the_words_behind_them(text: str, options: tuple[str, ...], rest: str) -> None:
    side = parse_side(text)
    assert side.options == options
    assert ",".join(f"{swap.slot}={swap.kernel}" for swap in side.swaps) == rest


def test_files_are_named_whole(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(kernel.parent)
    assert parse_side("norm=my_kernel.py:build").swaps == (Swap("norm", f"{kernel}:build"),)


def test_a_file_is_not_executed(kernel: Path) -> None:
    kernel.write_text("raise SystemExit\n" + KERNEL)
    assert parse_side(f"norm={kernel}:build").swaps


@each_row(
    ("text", "words"),
    [
        ("moe", "moe is no swap; write slot=kernel"),
        ("rope=spark_prof", "there is no slot rope"),
        ("moe=nothing", "there is no kernel nothing"),
        ("norm=marlin", "there is no kernel marlin"),
        ("qkv=marlin o=cutlass", "one --linear-backend, not both marlin and cutlass"),
        ("moe=spark_prof moe=fp8", "moe is given twice"),
        ("norm=/nowhere.py:build", "cannot read /nowhere.py"),
        ("'moe=spark_prof", "a quote is not closed"),
        ("SPARK_PROF=off", "is set by spark-prof ab itself"),
        ("SPARK_PROF_SWAPS=x", "is set by spark-prof ab itself"),
        ("PYTHONPATH=/x", "is set by spark-prof ab itself"),
    ],
)
def test_other_words_are_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(CommandError, match=re.escape(words)) as raised:
        parse_side(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "function"), [(KERNEL, "other"), (KERNEL, ""), ("def (", "build"), ("\0", "build")]
)
def test_files_without_the_function_are_refused(kernel: Path, content: str, function: str) -> None:
    kernel.write_text(content)
    with pytest.raises(CommandError, match=str(kernel)):
        parse_side(f"norm={kernel}:{function}")


def test_secrets_are_hidden_in_a_name() -> None:
    assert parse_side("HF_TOKEN=abc --api-key def").name == "HF_TOKEN=*** --api-key ***"


def test_formats_are_swaps() -> None:
    side = with_formats(parse_side("moe=spark_prof"), "qkv, o", "lm_head")
    words = ["moe=spark_prof", "qkv=mxfp4", "o=mxfp4", "lm_head=fp8"]
    assert [f"{swap.slot}={swap.kernel}" for swap in side.swaps] == words
    for mxfp4, fp8 in (("moe", ""), ("qkv", "qkv"), ("", "x")):
        with pytest.raises(CommandError):
            with_formats(side, mxfp4, fp8)


@each_row(
    ("a", "b", "one"),
    [
        ("stock", "moe=spark_prof", True),
        ("moe=spark_prof", "moe=fp8,o=mxfp4", True),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype fp8 moe=spark_prof", True),
        ("X=1", "X=1,moe=spark_prof", True),
        ("stock", "moe=marlin", False),
        ("stock", "X=1 moe=spark_prof", False),
        ("X=1", "X=2", False),
    ],
)
def test_one_engine_where_only_swaps_differ(a: str, b: str, one: bool) -> None:
    sides = parse_side(a), parse_side(b)
    mode = choose_mode("auto", *sides)
    assert mode.one is one
    assert mode.why
    assert not choose_mode("two", *sides).one
    if not one:
        with pytest.raises(CommandError, match="which a running engine cannot change"):
            choose_mode("one", *sides)


@pytest.mark.parametrize(("a", "b"), [("stock", ""), ("o=fp8 X=1", "X=1,o=fp8")])
def test_equal_sides_are_refused(a: str, b: str) -> None:
    with pytest.raises(CommandError, match="both sides are"):
        choose_mode("auto", parse_side(a), parse_side(b))
