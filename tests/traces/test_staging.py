"""A staged folder is there whole or not at all."""

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.staging import staged


def fill(out, error=None):
    with staged(out) as folder:
        (folder / "a").write_text("a")
        assert not (out / "a").exists()
        if error:
            raise error


@pytest.mark.parametrize("prepare", [lambda out: None, lambda out: out.mkdir()])
def test_whole(tmp_path, prepare):
    out = tmp_path / "deep" / "out"
    out.parent.mkdir()
    prepare(out)
    fill(out)
    assert [path.name for path in out.iterdir()] == ["a"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert out.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [OSError(28, "No space left"), CommandError("damaged")])
def test_not_at_all(tmp_path, error):
    with pytest.raises(CommandError):
        fill(tmp_path / "out", error)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(CommandError, match="exists already"):
        fill(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
