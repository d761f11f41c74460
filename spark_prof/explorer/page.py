"""What a page is, and what it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.datasets.prepared import Prepared


@dataclass(frozen=True)
class Sources:
    """What was opened.

    Attributes:
        all: every recording, in the order of the command line. Each is read when it is first looked
            at, which raises CommandError where it cannot be; its length is known without that.
        labels: a short name of each of `all`; not to be drawn unescaped.
        clients: results of load generators that were named beside them.
    """

    shown: Prepared
    all: Sequence[Prepared]
    labels: tuple[str, ...] = ()
    place: int = 0
    clients: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Page:
    """A page over recordings; a module of `pages` has one as PAGE. The frame draws its title.

    Attributes:
        show: draws it; a CommandError of it is shown as its line.
    """

    path: str
    title: str
    show: Callable[[Sources], None]


@dataclass(frozen=True)
class ResultPage:
    """A page over one result of `spark-prof ab`; shown in place of the others for such a source.

    Attributes:
        show: draws the result of this file; a CommandError of it is shown as its line.
    """

    path: str
    title: str
    show: Callable[[Path], None]
