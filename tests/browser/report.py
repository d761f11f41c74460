"""The figures that `spark-prof report` prints, to which those of the pages are held."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

from tests.browser.sources import OWN


@cache
def report_of(name: str) -> Any:
    """The report on a source as JSON."""
    command = [sys.executable, "-m", "spark_prof.cli.main", "report", str(OWN[name])]
    done = subprocess.run(
        [*command, "--format", "json"], capture_output=True, check=True, timeout=120
    )
    return json.loads(done.stdout)
