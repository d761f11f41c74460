"""A folder whose name begins as that of an allowed one is not in it."""

from __future__ import annotations

from pathlib import Path

from spark_prof.mcp_server.allowed_folders import AllowedFolders
from tests.support import refusal


def test_a_neighbour_is_refused(tmp_path: Path) -> None:
    root, beside = tmp_path / "data", tmp_path / "data2"
    for folder in (root, beside):
        folder.mkdir()
        (folder / "trace.json").write_text("{}")
    folders = AllowedFolders.of([root])
    assert folders.source("trace.json") == str(root.resolve() / "trace.json")
    for named in ("../data2/trace.json", str(beside / "trace.json"), "../data2"):
        with refusal("is not in the folders"):
            folders.source(named)
    with refusal("name a new folder in the folders"):
        folders.new_folder("../data2/out")
