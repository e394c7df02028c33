"""A sign of life while one thing takes long."""

import contextlib
import logging
import threading
import time
from collections.abc import Generator

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def still(what: str, *, every_seconds: float = 30.0) -> Generator[None]:
    """Logs again and again that `what` is under way, until the block ends."""
    began = time.monotonic()
    done = threading.Event()

    def report() -> None:
        while not done.wait(every_seconds):
            _logger.info("still %s, for %.0f s now", what, time.monotonic() - began)

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
