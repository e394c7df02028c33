"""Trains large language models and serves them from the same model code."""

import sys
from types import TracebackType

__all__: list[str] = []


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Says of Ctrl-C what programs say of it once they run, and of all else what Python says."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
    else:
        sys.__excepthook__(kind, error, trace)


# Python looks for a program, `python -m maxtext.train`: importing it may take a second, in which
# nothing of ours could catch Ctrl-C.
if sys.argv[:1] == ["-m"]:
    sys.excepthook = _tell
