"""README.md: short, and its report is what the command prints."""

from __future__ import annotations

from tests.docs.pages import README, README_LINES, README_REPORT, output


def test_its_report_is_what_the_command_prints() -> None:
    text = README.read_text(encoding="utf-8")
    shown = text.partition(f"$ spark-prof {' '.join(README_REPORT)}\n")[2].partition("\n```")[0]
    lines = shown.splitlines()
    assert len(lines) == README_LINES + 1
    assert lines.pop() == "..."
    printed = output([*README_REPORT]).splitlines()
    assert [line.rstrip() for line in printed[:README_LINES]] == lines


def test_it_is_read_in_three_minutes() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 900


def test_the_first_screen_sets_everything_up() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()[:40]
    for command in ("make demo", "make test"):
        [line] = [line for line in lines if line.startswith(command)]
        assert line.partition("  # ")[2].rstrip().endswith(("minutes", "cores")), line
