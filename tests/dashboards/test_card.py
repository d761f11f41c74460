"""A card says what the report says, and is a picture whatever the names are."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

import spark_prof
from spark_prof.dashboards.render import Layout, card_png, render_report
from spark_prof.dashboards.render.card_png import Card, card_of
from spark_prof.dashboards.short_report import short_report
from spark_prof.errors import CommandError
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
CODE = DATA / "code-h100" / "qwen3-30b-a3b-nvfp4"
SOURCES = (CODE, DATA / "h100-gpt-oss-20b-mxfp4-eager", DATA / "kineto" / "qwen3-eager.json.gz")


@each_row("source", SOURCES)
def test_every_text_is_one_of_the_report(source: Path) -> None:
    report = spark_prof.report(source)
    card = card_of(short_report(report))
    shown = " ".join(render_report(report, Layout("text", width=400)).split())
    missing = [
        text
        for text in card.texts
        if " ".join(text.split()) not in shown and text not in card.heads
    ]
    assert missing == []
    assert report.gpu.name in card.run
    assert report.run.vllm in card.run
    assert card.bars
    assert card.rows


def size(card: Card) -> tuple[int, int]:
    with Image.open(BytesIO(card_png.card_png(card))) as image:
        image.load()
        assert image.format == "PNG"
        return image.size


def test_a_card_is_a_picture_whatever_is_written_on_it() -> None:
    card = card_of(short_report(spark_prof.report(CODE)))
    long = "名前\n<script>" * 400
    hostile = replace(
        card,
        title=long,
        run=long,
        verdict=(long,) * 5,
        bars=tuple(replace(bar, name=long, length=9.0) for bar in card.bars * 3),
        rows=((long,) * len(card.heads),) * 40,
        caveats=(long,) * 9,
    )
    empty = Card("", "", (), "", (), "", (), (), (), ())
    for one in (card, hostile, empty):
        assert size(one) == (card_png.WIDTH, card_png.HEIGHT)


def test_a_card_needs_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_png, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match="pip install pillow"):
        card_png.card_png(Card("", "", (), "", (), "", (), (), (), ()))
