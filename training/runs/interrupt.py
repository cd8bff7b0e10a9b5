"""Stop a run between two steps when Ctrl-C or SIGTERM asks for it, so that it can be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from training.runtime import distributed

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Notes the first Ctrl-C or SIGTERM in a `with` block; a second one ends the process at once.

    Several processes would stop at different steps and wait for each other, so that a run of
    several is left to the signals' usual effect, and so are threads other than the main one.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and distributed.world_size() == 1:
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
