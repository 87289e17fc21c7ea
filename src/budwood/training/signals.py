"""SIGINT and SIGTERM: the first asks the step in progress to be the last, the second stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether the user or the system has asked this process to stop.

    Attributes:
        signal: the name of the signal that came; None while there was none.
    """

    def __init__(self) -> None:
        self.signal: str | None = None

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def handle(self, number: int, _: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: it is the second one. No library swallows this one.
        """
        if self.requested:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number).name
        # A signal handler may run amid a print of the main thread, so it writes past Python's buffers.
        with contextlib.suppress(OSError):
            os.write(2, f"\n{self.signal}: stopping after this step. Once more stops at once.\n".encode())


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Handle SIGINT and SIGTERM while the block runs, and put the former handlers back.

    Only the main thread can have handlers; elsewhere the block runs without.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.handle) for number in SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            # None is a handler that was not set from Python; it cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
