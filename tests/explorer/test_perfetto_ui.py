"""The installed UI of Perfetto is what the explorer takes it to be."""

from __future__ import annotations

import re

from spark_prof.explorer import perfetto_ui


def test_tracks_are_called_by_their_names_alone() -> None:
    folder = perfetto_ui._folder()
    assert folder is not None
    [path] = folder.rglob(perfetto_ui._BUNDLE)
    whole, served = path.read_bytes(), perfetto_ui._bundle(str(path))
    for numbered, _ in perfetto_ui._NUMBERED:
        assert len(re.findall(numbered, whole)) == 1
        assert not re.search(numbered, served)
