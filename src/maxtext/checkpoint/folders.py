"""Which steps a folder holds, by name alone."""

from pathlib import Path


def list_steps(directory: Path) -> list[int]:
    """The committed steps of a folder, oldest first; none if there is no such folder."""
    if not directory.is_dir():
        return []
    names = (entry.name for entry in directory.iterdir() if entry.is_dir())
    return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))
