"""The pages that there are; each is imported when it is first looked at: starting is quick."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from spark_prof.explorer.loading import IMPORTING
from spark_prof.explorer.page import Page, ResultPage

__all__ = ["PAGES", "Listed"]


@dataclass(frozen=True)
class Listed:
    """A page in the navigation.

    Attributes:
        path: in the address, and the name of its module.
        title: in the navigation.
        of_results: whether it shows results of ab, and no recordings.
    """

    path: str
    title: str
    of_results: bool = False

    def load(self) -> Page | ResultPage:
        """The page."""
        with IMPORTING:
            module = import_module(f"spark_prof.explorer.pages.{self.path}")
        found: Page | ResultPage = module.PAGE
        return found


PAGES = (
    Listed("overview", "Overview"),
    Listed("layers", "Layers"),
    Listed("timeline", "Timeline"),
    Listed("kernels", "Kernels"),
    Listed("conversions", "Conversions"),
    Listed("fallbacks", "Fallbacks"),
    Listed("ranks", "Ranks"),
    Listed("steps", "Steps"),
    Listed("compare", "Compare"),
    Listed("ab", "A/B", of_results=True),
)
"""In the order of the navigation."""
