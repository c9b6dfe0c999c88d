"""Which phase a launch entered, told to whoever waits for that launch."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from evaluator.ports import PhaseListener


class Phases:
    """Passes each phase on to the listener of the thread in which the launch is waited for."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def __call__(self, name: str) -> None:
        """A launch that this thread waits for entered a phase."""
        listener: PhaseListener | None = getattr(self._of_thread, "listener", None)
        if listener is not None:
            listener(name)

    @contextmanager
    def heard_by(self, listener: PhaseListener) -> Iterator[None]:
        """Pass the phases of this thread's launches on to `listener`, until the context is left."""
        before = getattr(self._of_thread, "listener", None)
        self._of_thread.listener = listener
        try:
            yield
        finally:
            self._of_thread.listener = before
