"""A card says what the report says, and is a picture whatever the names are."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

import spark_prof
from spark_prof.dashboards.render import Layout, card_png, render_report
from spark_prof.dashboards.render.card_png import Card, card_of
from spark_prof.dashboards.short_report import short_report
from spark_prof.errors import CommandError
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
CODE = DATA / "code-h100" / "qwen3-30b-a3b-nvfp4"
SOURCES = (CODE, DATA / "h100-gpt-oss-20b-mxfp4-eager", DATA / "kineto" / "qwen3-eager.json.gz")


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_no_text_of_a_card_runs_over_another_or_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = ImageDraw.ImageDraw
    plain = draw.text
    boxes: list[tuple[float, float, float, float]] = []

    def text(this: ImageDraw.ImageDraw, place: Any, line: str, fill: Any, font: Any) -> None:
        if line:
            boxes.append(this.textbbox(place, line, font=font))
        plain(this, place, line, fill, font)

    monkeypatch.setattr(draw, "text", text)
    card = card_of(short_report(spark_prof.report(CODE)))
    long = "a word " * 400
    card = replace(card, title=long, run=long, verdict=(long,) * 5, caveats=(long,) * 9)
    card_png.card_png(card)
    assert all(0 <= b[0] < b[2] <= card_png.WIDTH for b in boxes)
    assert all(0 <= b[1] < b[3] <= card_png.HEIGHT for b in boxes)
    over = [
        (a, b)
        for a, b in combinations(boxes, 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]
    assert over == []


def test_a_card_needs_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_png, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match="pip install pillow"):
        card_png.card_png(Card("", "", (), "", (), "", (), (), (), ()))
