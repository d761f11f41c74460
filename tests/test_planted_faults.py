"""The faults of `tests.planted_faults` can still be planted."""

from __future__ import annotations

from tests.planted_faults import FAULTS, ROOT, Fault
from tests.rows import each_row


def test_there_are_forty() -> None:
    assert len(FAULTS) >= 40
    assert len({(fault.file, fault.before) for fault in FAULTS}) == len(FAULTS)


@each_row("fault", FAULTS)
def test_each_stands_once_in_its_file(fault: Fault) -> None:
    text = (ROOT / "spark_prof" / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.before) == 1
    assert all((ROOT / "tests" / name).exists() for name in fault.tests.split())
