"""The names that a program imports from the package."""

from pathlib import Path

import pytest

import spark_prof
from spark_prof.errors import CommandError

DATA = Path(__file__).parent / "data"


def test_report_takes_a_bundle_its_folder_or_a_trace():
    folder = DATA / "h100-gpt-oss-20b-mxfp4-graphs"
    assert spark_prof.report(folder) == spark_prof.report(spark_prof.load(folder))
    imported = spark_prof.report(DATA / "kineto" / "qwen3-eager.json.gz")
    assert (imported.steps.decode, imported.steps.prefill) == (5, 1)


def test_what_is_no_recording_is_refused():
    with pytest.raises(CommandError, match="nothing that can be read"):
        spark_prof.report(DATA / "README.md")
