"""An answer, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What a run says to one of the questions.

    Attributes:
        id: a word for the question.
        question: as people ask it.
        text: the answer with its figures.
        evidence: what it stands on, and how much of the time that covers.
    """

    id: str
    question: str
    text: str
    evidence: str
