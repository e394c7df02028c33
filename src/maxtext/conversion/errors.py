"""What can be wrong with another project's files."""

_MAX_LINES = 10


class ConversionError(ValueError):
    """A model that cannot be read or written, said in one message for the user."""


def listed(lines: list[str]) -> str:
    """The lines, the first ten where there are more, each indented."""
    more = [f"and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
    return "".join(f"\n  {line}" for line in [*lines[:_MAX_LINES], *more])
