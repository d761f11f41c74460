"""What a side's words mean, and which sides can live in one engine."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.ab.sides import BACKENDS, OWN_KERNELS, choose_mode, parse_side, with_formats
from spark_prof.errors import CommandError
from spark_prof.rules.tune_candidates import TUNABLES
from spark_prof.swaps.swap_settings import SLOTS, Swap, format_swaps
from tests.rows import each_row

KERNEL = "def build(layer):\n    return None\n"


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "my_kernel.py"
    path.write_text(KERNEL)
    return path


MIXED = ["moe=spark_prof", "VLLM_X=1", "lm_head=mxfp4", "--kv-cache-dtype", "fp8"]


@each_row(
    ("text", "swaps", "options", "environment"),
    [
        *((text, "", "", ()) for text in ("", "stock", " stock , ", "stock stock")),
        *((by.join(MIXED), "moe=spark_prof,lm_head=mxfp4", "--kv-cache-dtype fp8",
           (("VLLM_X", "1"),)) for by in (" ", ",", ", ", "  ,\n")),
        *((f"{slot}={own}", f"{slot}={own}", "", ()) for slot in SLOTS for own in OWN_KERNELS),
        *((f"moe={each}", "", f"--moe-backend {each}", ()) for each in BACKENDS["--moe-backend"]),
        *((f"{slot}=cutlass", "", "--linear-backend cutlass", ())
          for slot in ("qkv", "o", "mlp", "lm_head")),
        ("--enforce-eager moe=spark_prof", "moe=spark_prof", "--enforce-eager", ()),
        ("-tp 2 -1", "", "-tp 2 -1", ()),
        ("--sizes 1 2 4 A=1", "", "--sizes 1 2 4", (("A", "1"),)),
        ("--linear-backend=marlin", "", "--linear-backend=marlin", ()),
        ('--x \'{"a": 1, "b": 2}\'', "", '--x \'{"a": 1, "b": 2}\'', ()),
    ],
)  # fmt: skip
def test_words_of_every_kind(
    text: str, swaps: str, options: str, environment: tuple[tuple[str, str], ...]
) -> None:
    side = parse_side(text)
    assert format_swaps(side.swaps) == swaps
    assert side.options == tuple(shlex.split(options))
    assert side.environment == environment
    assert (side.name == "stock") == (not (swaps or options or environment))
    linear = options == "--linear-backend cutlass"
    told = (f"{text} is vLLM's --linear-backend cutlass, for all linear layers at once",)
    assert side.notes == (told if linear else ())


def test_backends_are_those_of_vllm() -> None:
    """Of the vLLM that is installed here; the tables are of all versions together."""
    pytest.importorskip("vllm")
    from typing import get_args

    from vllm.config import kernel

    assert set(get_args(kernel.MoEBackend)) <= set(BACKENDS["--moe-backend"])
    assert set(get_args(kernel.LinearBackend)) <= set(BACKENDS["--linear-backend"])


def test_files_are_named_whole_and_not_executed(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.write_text("raise SystemExit\n" + KERNEL)
    monkeypatch.chdir(kernel.parent)
    assert parse_side("norm=my_kernel.py:build").swaps == (Swap("norm", f"{kernel}:build"),)
    for content, function in ((KERNEL, "other"), (KERNEL, ""), ("def (", "build"), ("\0", "build")):
        kernel.write_text(content)
        with pytest.raises(CommandError, match=str(kernel)):
            parse_side(f"norm={kernel}:{function}")


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


def test_a_name_is_read_as_the_same_side() -> None:
    awkward = ("'--a.b=[1,8]'", """--c '{"d": [1, 2]}'""", "X='a b'", "Y=", r"""Z='\\ a "b"'""")
    for text in (
        *(t.words.format(sizes="1,8", graphs="1 8") for t in TUNABLES if t.words),
        *awkward,
    ):
        side = parse_side(text)
        assert replace(parse_side(side.name), notes=()) == replace(side, notes=()), text


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
