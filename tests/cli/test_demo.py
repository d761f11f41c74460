"""`spark-prof demo` has what it shows, in the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import spark_prof
from demo.models import MODELS, write_model
from spark_prof.cli.explore import EXAMPLE
from tests.explorer.framed import framed
from tests.rows import each_row


def test_the_example_is_a_recording_that_the_package_brings() -> None:
    report = spark_prof.report(EXAMPLE)
    assert report.steps.decode == 94
    # The first thing that a newcomer sees claims what it knows.
    assert report.coverage.proven > 0.95
    assert report.coverage.guessed < 0.01
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert EXAMPLE.name in project["tool"]["setuptools"]["package-data"]["spark_prof"]


def test_the_explorer_opens_it() -> None:
    page = framed([str(EXAMPLE)], "kernels")
    assert not page.exception
    assert len(page.dataframe)


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
