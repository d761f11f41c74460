"""How recorded processes learn that their recorder is gone, however it ended.

The recorder holds the kernel's lock on its folder (`Claim`): it ends with the recorder, is seen
from containers that share the folder, and is still held by one that is only stopped. Beside it the
recorder counts in a small file of the pieces, its pulse: for hosts and file systems from which the
lock cannot be seen, and because one that is stopped for long looks after nothing. None of it needs
room on the disk, the number of a process, or a clock that both sides share.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from spark_prof.traces.chunks import RECORDING_FILE, boot_id
from spark_prof.traces.claim import holds

PULSE_FILE = "recorder.pulse"  # name of the file in the pieces folder

_PULSE = struct.Struct("<qq")  # beats so far; 1 as soon as the recording shall end
_BEAT_SECONDS = 1.0

SILENT_SECONDS = 20.0
"""Without a beat for so long a recorder whose lock is still held is taken as gone: a few seconds
happen on a busy machine."""

_LOOKS = 2  # in a row that find no lock; one may fall into a moment of a file system
_LONGEST_LOOK_SECONDS = 2.0


class Pulse:
    """The recorder's half: a thread that beats until `end`."""

    def __init__(self, pieces: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(pieces / PULSE_FILE, flags, 0o644)
        os.pwrite(self._descriptor, _PULSE.pack(1, 0), 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="spark-prof pulse", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        beats = 1
        while not self._ended.wait(_BEAT_SECONDS):
            beats += 1
            with suppress(OSError):
                os.pwrite(self._descriptor, struct.pack("<q", beats), 0)

    def end(self) -> None:
        """Beats no more."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            os.close(self._descriptor)


def ask_to_end(pieces: Path) -> None:
    """Asks in the pulse, which is there already: on a full disk no file can be made."""
    with suppress(OSError):
        descriptor = os.open(pieces / PULSE_FILE, os.O_WRONLY)
        try:
            os.pwrite(descriptor, struct.pack("<q", 1), 8)
        finally:
            os.close(descriptor)


class RecorderWatch:
    """The recorded process's half: what a thread of its looks at, twice a second."""

    def __init__(self, pieces: Path) -> None:
        self._pieces = pieces
        self._locked = _lock_is_to_be_seen(pieces)
        self._beats = 0
        self._unlocked = self._missing = 0  # looks in a row
        self._silent_s = 0.0
        self._looked = time.monotonic()

    def asks_for_end(self) -> bool:
        """Whether the recorder asks for the end."""
        return bool(_pulse(self._pieces)[1])

    @property
    def doubtful(self) -> bool:
        """Whether the last look found no recorder."""
        return self._unlocked + self._missing > 0

    def end_reason(self) -> str:
        """Why nobody waits for the recording any more; empty as long as somebody may."""
        now = time.monotonic()
        # A process that was stopped itself has not waited all the time.
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK_SECONDS), now
        try:
            self._pieces.stat()
            locked = holds(self._pieces.parent)
            self._missing = 0
        except FileNotFoundError:
            self._missing += 1
            return "its folder was removed or moved" if self._missing >= _LOOKS else ""
        except OSError:
            return ""
        self._locked |= locked is True
        self._unlocked = self._unlocked + 1 if locked is False and self._locked else 0
        if self._unlocked >= _LOOKS:
            return "its recorder ended without a word"
        beats = _pulse(self._pieces)[0]
        self._silent_s = self._silent_s + passed if beats == self._beats > 0 else 0.0
        self._beats = beats
        if self._silent_s > SILENT_SECONDS:
            return f"its recorder gave no sign of life for {SILENT_SECONDS:.0f} s"
        return ""


def _lock_is_to_be_seen(pieces: Path) -> bool:
    """Whether the recorder locked its folder under the kernel that runs here."""
    with suppress(OSError, ValueError, AttributeError):
        value = json.loads((pieces / RECORDING_FILE).read_text(encoding="utf-8"))
        return bool(value.get("locked_in")) and bool(value["locked_in"] == boot_id())
    return False


def _pulse(pieces: Path) -> tuple[int, int]:
    """Beats, and whether the recording shall end; zeros where there is none."""
    try:
        beats, end = _PULSE.unpack((pieces / PULSE_FILE).read_bytes()[: _PULSE.size])
    except (OSError, struct.error):
        return 0, 0
    return int(beats), int(end)
