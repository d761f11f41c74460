"""`spark-prof demo` has what it shows, in the package."""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

import spark_prof
from demo.models import MODELS, write_model
from spark_prof.cli import explore as explore_module
from spark_prof.cli.explore import EXAMPLE, PAIR
from spark_prof.datasets.opened import opened
from spark_prof.datasets.prepared import prepare
from spark_prof.traces.machine_code import CUBINS_FOLDER, keeps_cubin, list_function
from tests.command_line import ran
from tests.explorer.framed import framed
from tests.rows import each_row
from tests.support import refusal

DATA = Path(__file__).parents[1] / "data"


def test_the_example_is_a_recording_that_the_package_brings() -> None:
    report = spark_prof.report(EXAMPLE)
    assert report.steps.decode == 94
    # The first thing that a newcomer sees claims what it knows.
    assert report.coverage.proven > 0.95
    assert report.coverage.guessed < 0.01
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["spark_prof"]
    for path in (EXAMPLE, *PAIR, EXAMPLE.with_name("example-licenses.txt")):
        assert any(fnmatch(path.name, pattern) for pattern in patterns)
    # bar: what everybody downloads for it is a few megabytes
    assert sum(path.stat().st_size for path in (EXAMPLE, *PAIR)) < 3_500_000


def test_its_largest_kernels_have_their_instructions() -> None:
    report = spark_prof.report(EXAMPLE)
    listed = {
        row.name: row for row in report.machine_code if keeps_cubin(EXAMPLE, row.cubin)
    }  # fmt: skip
    times = Counter[str]()
    for row in report.kernels:
        times[row.name] += row.us
    # The experts' Marlin was compiled by the driver: it is in no wheel.
    assert sum(times[name] for name in listed) > 0.4 * times.total()
    dense = next(row for name, row in listed.items() if "marlin::Marlin" in name)
    lines = list_function(EXAMPLE, dense.cubin, dense.function)
    assert len(lines) == dense.instructions
    assert any(line.opcode.startswith("HMMA") for line in lines)
    with opened(str(EXAMPLE)) as bundle:
        for path in (bundle.path / CUBINS_FOLDER).iterdir():
            assert hashlib.sha256(path.read_bytes()).hexdigest()[:16] == path.stem


def test_what_it_does_not_keep_is_told() -> None:
    with refusal("does not keep cubins/0123456789abcdef.cubin"):
        list_function(EXAMPLE, "0123456789abcdef", "f")
    assert not keeps_cubin(EXAMPLE, "../meta")


@pytest.mark.slow
def test_the_pair_is_the_recordings_of_an_ab_run() -> None:
    for path, name in zip(PAIR, ("recording-a-1", "recording-b-1"), strict=True):
        with opened(str(path)) as packed, opened(str(DATA / "ab-h100" / name)) as bundle:
            columns = ["start_ns", "end_ns", "step", "layer"]
            assert packed.frame("kernels", 0, columns).equals(bundle.frame("kernels", 0, columns))
            assert packed.facts(0)["model"] == "gpt-oss-20b"
    code, out, _ = ran("compare", *PAIR)
    assert code == 0
    assert "example-after is 50.4 % faster" in " ".join(out.split())


def test_the_pair_is_opened_and_its_comparison_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[str]] = []
    monkeypatch.setattr(explore_module, "explore", lambda sources, **_: shown.append(sources))
    code, _, err = ran("demo", "--compare")
    assert (code, shown) == (0, [list(map(str, PAIR))])
    assert f"next: spark-prof compare {PAIR[0]} {PAIR[1]}" in err


def test_the_explorer_opens_it() -> None:
    page = framed([str(EXAMPLE)], "kernels")
    assert not page.exception
    assert len(page.dataframe)


def test_the_explorer_lists_the_instructions_of_a_kernel() -> None:
    shown = prepare(str(EXAMPLE))
    row = next(row for row in shown.report.machine_code if row.name.startswith("void marlin::"))
    page = framed([EXAMPLE], "kernels", kernel=shown.kernels.names.index(row.name), code=row.cubin)
    assert "HMMA.16816.F32.BF16" in "".join(element.proto.body for element in page.get("html"))


@each_row("name", sorted(MODELS))
def test_configurations_of_models_load_as_they_are_written(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    written = MODELS[name]
    config = transformers.AutoConfig.from_pretrained(write_model(name, tmp_path))
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        assert getattr(config, key) == written[key]
    # One letter a layer; from it vLLM makes the layers.
    assert getattr(config, "hybrid_override_pattern", "") == written.get(
        "hybrid_override_pattern", ""
    )
