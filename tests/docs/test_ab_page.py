"""The pages of `spark-prof ab`: their sides can be run, and keys and figures are the code's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_prof.ab.accuracy_gate import rounding_deviation
from spark_prof.ab.apply import lines_of
from spark_prof.ab.command import engine_command
from spark_prof.ab.result import AbOutcome, from_json
from spark_prof.ab.sides import OWN_KERNELS, choose_mode, parse_side, with_formats
from spark_prof.cli.options import whole_numbers
from spark_prof.speculate.acceptance import given_acceptance
from spark_prof.speculate.plan import drafter_of, variants_of
from spark_prof.swaps.swap_settings import SLOTS
from tests.command_line import parsed
from tests.docs.pages import PAGES, ROOT, commands, tables
from tests.rows import each_row

PAGE = ROOT / "docs" / "ab.md"
RESULTS = ROOT / "benchmarks" / "results" / "ab" / "README.md"
COMMANDS = sorted({tuple(w) for page in PAGES for w in commands(page) if w[0] == "ab"})


@each_row("words", COMMANDS)
def test_what_is_shown_could_be_run(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda word: f"/usr/bin/{word}")
    found = parsed(words)
    for word in found["b"].replace(",", " ").split():
        path, _, function = word.partition("=")[2].rpartition(":")
        if path.endswith(".py"):
            Path(path).write_text(f"def {function}(layer):\n    return None\n")
    side = with_formats(parse_side(found["b"]), found["mxfp4_layers"], found["fp8_layers"])
    if found["apply"]:
        if not found["command"]:
            assert list(lines_of(side, {}))
        return
    assert choose_mode(found["mode"], parse_side(found["a"]), side).why
    assert engine_command(found["command"]).python


def test_what_the_page_of_tune_shows_could_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda word: f"/usr/bin/{word}")
    shown = [w for w in commands(ROOT / "docs" / "tune.md") if w[0] == "tune"]
    assert len(shown) >= 4
    for words in shown:
        found = parsed(tuple(words))
        assert engine_command(found["command"]).arguments
        assert all(parse_side(side).name for side in found["sides"] or ())


def test_what_the_page_of_speculate_shows_could_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda word: f"/usr/bin/{word}")
    page = commands(ROOT / "docs" / "speculate.md")
    shown = [words for words in page if words[0] == "speculate"]
    assert len(shown) >= 4
    for words in shown:
        found = parsed(tuple(words))
        config = drafter_of(engine_command(found["command"]))
        assert variants_of(config, whole_numbers(found["drafts"], ""))
        if found["acceptance"]:
            assert given_acceptance(found["acceptance"]).most == 3


def test_the_words_of_the_sides_are_known() -> None:
    [table] = tables(PAGE, "Sides")
    shown = [word.strip(" `") for row in table for word in row[0].split(",")]
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"={kernel}`" in text for kernel in OWN_KERNELS)
    assert f"Slots are `{' '.join(SLOTS)}`" in text
    for word in shown:
        if ".py:" not in word and word != "moe=NAME":
            assert parse_side(word).name


def test_the_bounds_are_the_code_s() -> None:
    [table] = tables(ROOT / "docs" / "ab-protocol.md", "Sides that keep the weights' bits")
    for layers, deviation in table:
        assert f"{rounding_deviation(int(layers)):.3f}" == deviation


def _result(name: str) -> AbOutcome:
    path = ROOT / "benchmarks" / "results" / "ab" / f"{name}.json"
    return from_json(path.read_bytes(), str(path))


def test_gains_are_those_of_the_results() -> None:
    shown = [
        row
        for heading in ("A/B on an H100", "In two engines on an H200")
        for row in tables(RESULTS, heading)[0]
    ]
    expected = []
    for name in dict.fromkeys(row[0] for row in shown):
        for run in _result(name).runs:
            found = run.estimate
            assert found.gain is not None
            times = (f"{(us or 0.0) / 1e3:.3f} ms" for us in (found.a_us, found.b_us))
            gain = (found.gain.value, found.gain.low, found.gain.high)
            value, low, high = (f"{each:.3f}" for each in gain)
            expected.append([name, str(run.requests), *times, f"{value} x", f"{low} to {high}"])
    assert shown == expected


def test_where_the_gain_came_from_is_that_of_the_results() -> None:
    text = " ".join(RESULTS.read_text(encoding="utf-8").split())
    (quantized,) = _result("gpt-oss-20b-quantized").attributions
    waits = {row.component: row.b_us for row in quantized.components}["waiting for the host"]
    assert f"side b waits {waits:.1f} us" in text
    (batch_8,) = _result("gpt-oss-20b-batch-8").attributions
    assert f"({batch_8.explained_us:.1f} us of {batch_8.gain_us:.1f} us)" in text
    assert batch_8.adds_up
    (layer,) = _result("gpt-oss-20b-layer-h200").attributions
    saved = {row.component: row.saved_us / 1e3 for row in layer.components}
    waits = -saved.pop("waiting for the host")
    assert f"save {sum(saved.values()):.3f} ms of a step, and side b then waits {waits:.3f}" in text
    assert layer.residual_us is None
    (held,) = _result("gpt-oss-20b-layer-slow-host-h200").attributions
    assert held.device_gain_us
    assert held.residual_us
    alone = held.device_gain_us / 1e3
    assert f"save {alone - held.residual_us / 1e3:.3f} ms of the {alone:.3f} ms" in text
    assert f"{-held.residual_us / held.device_gain_us:.1%} off".replace("%", " %") in text
    assert held.adds_up
