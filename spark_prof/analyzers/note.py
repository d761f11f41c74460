"""A sentence that a reader should know before believing a figure, and what it is about."""

from __future__ import annotations

from typing import Literal

About = Literal["figures", "recording", "left out"]


class Note(str):
    """A sentence, as JSON has it, which knows what it is about.

    Note("The first 8 steps were let pass before these (--warmup-steps).", "recording")

    Args:
        about: figures, which it takes something from; the recording, whose figures it leaves as
            they are; or what was left out of every figure.
    """

    about: About

    def __new__(cls, text: str, about: About = "figures") -> Note:
        """The sentence."""
        note = super().__new__(cls, text)
        note.about = about
        return note


def about(note: str) -> About:
    """What a sentence of a report is about."""
    return note.about if isinstance(note, Note) else "figures"
