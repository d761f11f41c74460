"""Recordings are read once."""

from tests.read_once import few_recordings_open, recordings_read_once

__all__ = ["few_recordings_open", "recordings_read_once"]
