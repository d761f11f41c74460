"""Every format, damaged: each page is drawn, or one readable line stands on it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.explorer.framed import DATA, PATHS, framed, texts
from tests.fuzz.fixtures import BUNDLE, PIECES, TRACE, build
from tests.fuzz.mutations import mutate
from tests.fuzz.test_handmade import HURTFUL

_EACH = 3
"""Of what can still be read every third is looked at on all pages, the others on the first."""

_FILES = (
    "10 GiB of zeros in an event", "a zip that leads out", "a tar with a link",
    "nested calls of Proton", "no rows", "only a magic number", "a Parquet table", "nothing",
    "a CSV that never ends its quote", "UTF-16",
)  # fmt: skip
_CPU = DATA / "benchmarks" / "vllm-serve-bundle"

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


def test_what_would_do_harm_is_a_line_and_the_sound_one_beside_it_opens(tmp_path: Path) -> None:
    paths: list[Path] = []
    for number, what in enumerate(_FILES):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_bytes(HURTFUL[what]())
    for name in ("meta.json", "kernels-rank0.parquet", "steps-rank0.parquet"):
        paths.append(shutil.copytree(_CPU, tmp_path / f"bundle-{name}"))
        data = (paths[-1] / name).read_bytes()
        (paths[-1] / name).write_bytes(data[: len(data) // 2])
    paths.append(tmp_path / "result.json")
    result = json.loads((DATA / "ab-cpu" / "result.json").read_text())
    paths[-1].write_text(json.dumps(dict.fromkeys(result)))
    sound = len(paths)
    paths.append(DATA / "h100-gpt-oss-20b-mxfp4-graphs")
    for place, path in enumerate(paths[:sound]):
        app = framed(paths, source=place)
        lines = [line for line in texts(app).splitlines() if path.name in line]
        assert lines, path
        assert max(map(len, lines)) < 400 + len(str(path))
        assert not app.get("plotly_chart")
    assert framed(paths, source=sound).get("plotly_chart")
    assert framed(paths, "compare", source=sound, other=0).header
