"""Each row knows its example, and files that serve several components have none."""

from __future__ import annotations

from spark_prof.rules.source_files import SOURCE_FILES, SourceFile, component_of_source
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row


@each_row("row", SOURCE_FILES)
def test_a_row_knows_its_example(row: SourceFile) -> None:
    assert component_of_source(row.example) == row.component
    assert row.component in COMPONENTS


@each_row(
    "file",
    ["model_executor/layers/linear.py", "model_executor/layers/activation.py",
     "model_executor/layers/vocab_parallel_embedding.py", "model_executor/models/qwen3.py",
     "distributed/communication_op.py", "layernorm.py"],
)  # fmt: skip
def test_files_that_serve_several_tell_nothing(file: str) -> None:
    assert component_of_source(file) == ""
