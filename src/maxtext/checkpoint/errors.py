"""What can be wrong with a checkpoint, each said in one message for the user."""

import os
import re

# TensorStore quotes the system's errors like so.
_SYSTEM_ERROR = re.compile(r"os_error_code='(\d+)'")
_MAX_REASON_CHARACTERS = 160


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, found or read."""


class CheckpointMismatch(CheckpointError):
    """A checkpoint of another model or optimizer than this run's."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint whose files are missing, cut off or changed."""


def brief(error: BaseException) -> str:
    """What the operating system said, or the first line of the error, shortened."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    if code := _SYSTEM_ERROR.search(str(error)):
        return os.strerror(int(code[1]))
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    cut = len(text) > _MAX_REASON_CHARACTERS
    return text[: _MAX_REASON_CHARACTERS - 3] + "..." if cut else text


def code(error: ValueError) -> str:
    """TensorStore's word for what is wrong, without its paragraph."""
    word, _, _ = str(error).partition(":")
    return word if word.isupper() else brief(error)
