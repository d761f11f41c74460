"""What cannot be read is said on the page, in one line, and the sources beside it open."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import sources
from tests.browser.conftest import Site
from tests.browser.served import EXPLORE, Served
from tests.browser.view import View
from tests.fuzz.test_handmade import HURTFUL

FILES = (
    "10 GiB of zeros in an event", "a zip that leads out", "a tar with a link",
    "nested calls of Proton", "no rows", "only a magic number", "a Parquet table", "nothing",
    "a CSV that never ends its quote", "UTF-16",
)  # fmt: skip
BUNDLES = ("meta.json", "kernels-rank0.parquet", "steps-rank0.parquet")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Every family of damage as a source of one server, and a sound recording as the last one."""
    folder = tmp_path_factory.mktemp("broken")
    paths: dict[str, Path] = {}
    for number, what in enumerate(FILES):
        paths[what] = folder / f"{number}.json"
        paths[what].write_bytes(HURTFUL[what]())
    for name in BUNDLES:
        paths[name] = Path(shutil.copytree(sources.OWN["cpu"], folder / f"bundle-{name}"))
        data = (paths[name] / name).read_bytes()
        (paths[name] / name).write_bytes(data[: len(data) // 2])
    paths["result"] = folder / "result.json"
    result = json.loads(sources.OWN["ab-cpu"].read_text())
    paths["result"].write_text(json.dumps(dict.fromkeys(result)))
    paths["sound"] = sources.OWN["graphs"]
    with Served([*EXPLORE, *map(str, paths.values())], folder) as served:
        yield Site(served, {name: place for place, name in enumerate(paths)}, paths)
    assert "Traceback" not in served.log, served.log[-4000:]


@pytest.mark.parametrize("what", [*FILES, *BUNDLES, "result"])
def test_one_line_says_why(broken: Site, fresh: Callable[..., View], what: str) -> None:
    view = fresh(broken.served.url).open(source=broken.places[what])
    path = broken.paths[what]
    lines = [line for line in view.text.splitlines() if path.name in line]
    assert lines, view.text
    assert max(map(len, lines)) < 400 + len(str(path))
    assert not view.page.locator("[data-testid=stPlotlyChart]").count()


def test_the_sound_one_beside_them_opens(broken: Site, fresh: Callable[..., View]) -> None:
    view = fresh(broken.served.url).open(source=broken.places["sound"])
    assert view.plot("time-of-a-token").count()
    view.open("compare", source=broken.places["sound"], other=broken.places["nothing"])
    assert "0.json" not in view.titles()
