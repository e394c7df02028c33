"""Trains large language models and serves them from the same model code."""

import os
import signal
import sys
from types import FrameType

__all__: list[str] = []


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ends a program that is still being imported, and is KeyboardInterrupt from then on.

    An exception would show where it was raised, and be lost where that is a module in C or the
    garbage collector.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            sys.stderr.write("interrupted\n")
            sys.stderr.flush()
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


# Python looks for a program, `python -m maxtext.train`, which does not ignore Ctrl-C.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _interrupt)
