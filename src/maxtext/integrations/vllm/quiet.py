"""Keeps stdout for what we print."""

import contextlib
import os
import sys
from collections.abc import Generator


@contextlib.contextmanager
def stdout_to_stderr() -> Generator[None]:
    """Sends to stderr what libraries print to stdout, from C++ as well."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
