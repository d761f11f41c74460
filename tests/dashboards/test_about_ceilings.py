"""Everything about a checkpoint can be drawn, whatever its configuration holds."""

from __future__ import annotations

from spark_prof.analyzers.ceilings import Ceilings, Question, ceilings_of
from spark_prof.dashboards.render import html_page, markdown, terminal
from spark_prof.dashboards.section import Document, without_empty_columns
from spark_prof.dashboards.sections.ceiling_section import sections
from spark_prof.rules.gpus import GPUS
from spark_prof.traces.checkpoint import read_checkpoint
from tests.checkpoints import MODELS
from tests.rows import each_row


def ceilings(name: str, question: Question | None = None) -> Ceilings:
    return ceilings_of(read_checkpoint(MODELS / name), question)


def document(found: Ceilings) -> Document:
    drawn = (without_empty_columns(section) for section in sections(found) if section.rows)
    return Document("a model", (), tuple(drawn))


def cells(found: Ceilings, section: str) -> dict[str, tuple[object, ...]]:
    (table,) = (each for each in sections(found) if each.id == section)
    return {str(row[0]): row for row in table.rows}


@each_row("name", sorted(path.name for path in MODELS.iterdir() if path.is_dir()))
def test_every_model_is_drawn(name: str) -> None:
    found = ceilings(name)
    drawn = document(found)
    assert "as it is" in terminal.draw(drawn)
    assert "as it is" in markdown.draw(drawn)
    assert "as it is" in html_page.draw(drawn, {})
    for section in drawn.sections:
        assert {len(row) for row in section.rows} == {len(section.columns)}


def test_the_choices_of_gpt_oss_120b() -> None:
    rows = cells(ceilings("gpt-oss-120b"), "ceilings")
    assert rows["as it is"][1:3] == ("4.999 GB", "46.2 / 54.6")
    assert rows["attention and lm_head FP8"][2] == "66.7 / 78.8"
    assert rows["attention and lm_head MXFP4"][2] == "84.1 / 99.4"


def test_another_gpu_comes_first() -> None:
    l40s = next(gpu for gpu in GPUS if gpu.short == "l40s")
    checkpoint = read_checkpoint(MODELS / "gpt-oss-20b")
    found = ceilings_of(checkpoint, gpus=(l40s, *(gpu for gpu in GPUS if gpu != l40s)))
    (table,) = (each for each in sections(found) if each.id == "ceilings")
    assert [column.title for column in table.columns][2:4] == ["L40S", "GB10"]
    assert "L40S at 864 GB/s" in terminal.draw(document(found))


def test_a_question_is_repeated() -> None:
    asked = Question(batch=4, context=8192, scheduled=3, accepted=2.4, ranks=2)
    drawn = " ".join(terminal.draw(document(ceilings("gpt-oss-120b", asked))).split())
    assert "4 sequences, 8,192 tokens of context each" in drawn
    assert "3 tokens of each in a step, 2.4 of them accepted" in drawn
    assert "shared out among 2 GPUs" in drawn
