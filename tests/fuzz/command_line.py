"""Runs the real command line with little memory and little time."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import dataclass

_ADDRESS_SPACE = 4 << 30
"""Bytes; the libraries alone reserve more than one GiB of it."""

_SECONDS = 120


@dataclass(frozen=True)
class Finished:
    """How the command ended."""

    code: int
    output: str
    errors: str

    def assert_sound(self) -> None:
        """The command said what it had to say, whatever it was."""
        assert self.code in (0, 2), f"exit code {self.code}\n{self.errors[-3000:]}"
        assert "Traceback" not in self.errors
        bad = {c for c in self.errors if not c.isprintable() and c != "\n"}
        assert not bad, f"control characters {bad!r} on stderr"

    def assert_refused(self) -> None:
        """The command ended with one line and exit code 2."""
        self.assert_sound()
        assert self.code == 2, "it was not refused"
        assert self.errors.count("\n") == 1, self.errors[:3000]
        assert self.errors.startswith("spark-prof: "), self.errors
        assert not self.output


def spark_prof(*arguments: object) -> Finished:
    """Runs `spark-prof` with these arguments to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "spark_prof.cli.main", *map(str, arguments)],
        capture_output=True,
        timeout=_SECONDS,
        preexec_fn=_limit,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
    )
    output, errors = done.stdout.decode(), done.stderr.decode()
    return Finished(done.returncode, output, errors)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
