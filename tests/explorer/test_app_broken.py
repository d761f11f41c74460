"""Every format, damaged: each page is drawn, or one readable line stands on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.explorer.framed import PATHS, framed, texts
from tests.fuzz.fixtures import BUNDLE, PIECES, TRACE, build
from tests.fuzz.mutations import mutate

_EACH = 3
"""Of what can still be read every third is looked at on all pages, the others on the first."""

_OURS = "a fault of spark-prof"
"""What a page says of an error that nobody thought of."""


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Files that were sound, each damaged once."""
    fixtures = build(tmp_path_factory.mktemp("fixtures"))
    folder = tmp_path_factory.mktemp("damaged")
    found = []
    chosen = [f for f in fixtures if f.kind in (TRACE, BUNDLE, PIECES)]
    for number, fixture in enumerate(chosen):
        place = folder / str(number) / fixture.path.name
        place.parent.mkdir()
        copy = shutil.copytree if fixture.path.is_dir() else shutil.copyfile
        copy(fixture.path, place)
        chance = Random(f"{fixture.name}:{number}")
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
        mutate(chance.choice(files), chance)
        found.append(place)
    yield found
    shutil.rmtree(folder)


def test_what_is_damaged_is_drawn_or_refused_in_a_line(damaged: list[Path]) -> None:
    refused = 0
    for number, place in enumerate(damaged):
        app = framed([place])
        said = texts(app)
        assert _OURS not in said, f"{place}: {said}"
        assert "Traceback" not in said
        if len(app.subheader) == 0:
            refused += 1
            assert str(place) in said or place.name in said, said
            continue
        for page in PATHS[1:] if number % _EACH == 0 else ():
            said = texts(framed([place], page))
            assert _OURS not in said, f"{place}, {page}: {said}"
    assert 0 < refused < len(damaged)
