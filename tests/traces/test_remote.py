"""What comes from a store: bounded, inside the target folder, and one line when it fails."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import fsspec
import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.remote import is_url, local_copy
from spark_prof.traces.resolve import fetched
from tests.rows import each_row
from tests.support import Recorded, eager_decode, refusal


@pytest.fixture
def store() -> Iterator[fsspec.AbstractFileSystem]:
    found = fsspec.filesystem("memory")
    yield found
    found.rm("/", recursive=True)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    Recorded({0: [eager_decode()]}).assemble(tmp_path / "b")
    return tmp_path / "b"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


@each_row("source", ["run", "/a/b", "./a://b", "C:/x", "", "a:b", "://x"])
def test_paths(source: str) -> None:
    assert not is_url(source)


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_a_bundle_arrives_whole(
    protocol: str, bundle: Path, into: Path, store: fsspec.AbstractFileSystem
) -> None:
    url = f"file://{bundle}"
    if protocol == "memory":
        store.put(str(bundle), "/runs/b", recursive=True)
        url = "memory://runs/b"
    found = Bundle(local_copy(url, into))
    assert found.meta == Bundle(bundle).meta
    assert found.path.parent == into


def test_a_bundle_on_a_web_server(bundle: Path, into: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http only with aiohttp")
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = partial(quiet, directory=str(bundle.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        try:
            assert Bundle(local_copy(f"{base}/b", into)).meta == Bundle(bundle).meta
            with pytest.raises(CommandError, match="does not exist"):
                local_copy(f"{base}/nothing.json", into)
        finally:
            server.shutdown()


def test_more_than_the_limit_is_refused(into: Path, store: fsspec.AbstractFileSystem) -> None:
    store.pipe_file("/t/large.json", b"x" * 1000)
    with pytest.raises(CommandError, match="is larger than"):
        local_copy("memory://t/large.json", into, most_bytes=999)
    assert local_copy("memory://t/large.json", into, most_bytes=1000).stat().st_size == 1000


@pytest.mark.parametrize("name", ["/t/../../out", "/t/a/../../../out", "/elsewhere/x"])
def test_no_name_leads_out_of_the_folder(
    name: str, into: Path, store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pipe_file("/t/meta.json", b"{}")
    # What a hostile store would list: the memory store keeps no such names itself.
    monkeypatch.setattr(type(store), "find", lambda *_, **__: [name])
    with pytest.raises(CommandError, match="outside"):
        local_copy("memory://t", into)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memory://nothing/here", "does not exist"),
        ("nosuch://x/y", "cannot read"),
        ("simplecache::memory://x", "chains stores"),
        ("s3://user:secret@bucket/x", "pip install s3fs"),
        ("ssh://user:secret@host/x", "pip install paramiko"),
    ],
)
def test_what_cannot_be_read_is_one_line(url: str, says: str, into: Path) -> None:
    package = says.rpartition(" ")[2]
    if "pip" in says and find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    with refusal(says) as caught:
        local_copy(url, into)
    assert "secret" not in str(caught.value)


def test_an_error_names_the_url_and_no_copy_that_is_gone(
    store: fsspec.AbstractFileSystem, tmp_path: Path
) -> None:
    store.pipe_file("/runs/b/meta.json", b"{}")
    with pytest.raises(CommandError) as caught, fetched("memory://runs/b") as found:
        Bundle(found.path)
    assert str(caught.value).startswith("memory://runs/b/meta.json is damaged")
    assert "/tmp" not in str(caught.value)
