"""What can be wrong with a checkpoint, each said in one message for the user."""

_MAX_REASON_CHARACTERS = 160


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, found or read."""


class CheckpointMismatch(CheckpointError):
    """A checkpoint of another model or optimizer than this run's."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint whose files are missing, cut off or changed."""


def brief(error: BaseException) -> str:
    """The first line of an error, shortened."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    cut = len(text) > _MAX_REASON_CHARACTERS
    return text[: _MAX_REASON_CHARACTERS - 3] + "..." if cut else text
