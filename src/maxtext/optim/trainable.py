"""Which weights are trained."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from maxtext.config.errors import nearest
from maxtext.parallel.params import Param, map_params, named_leaves

_LETTERS = re.compile(r"[A-Za-z0-9_]+(?:/[A-Za-z0-9_]+)*")


def trainable_mask(patterns: Sequence[str], specs: Any) -> Any:
    """True for the weights in whose name one of the patterns is found; without any, for all.

    Raises:
        ValueError: A pattern is found in no name.
    """
    names = named_leaves(specs)
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise ValueError(
                f"trainable_parameters_mask: {pattern!r} is found in no weight's name; "
                f"{_near(pattern, names)}"
            )

    def one(name: str, _: Param) -> bool:
        return not patterns or any(re.search(pattern, name) for pattern in patterns)

    return map_params(one, specs)


def _near(pattern: str, names: Mapping[str, Param]) -> str:
    """The names that come closest to a pattern, by the longest run of letters in it."""
    word = max(_LETTERS.findall(pattern), key=len, default="")
    parts = {
        "/".join(name.split("/")[start:end]): name
        for name in names
        for start in range(name.count("/") + 1)
        for end in range(start + 1, name.count("/") + 2)
    }
    part = nearest(word, parts)
    if part is None:
        return f"there are {', '.join(names)}"
    found = [name for name in names if f"/{part}/" in f"/{name}/"]
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    return f"did you mean {', '.join(found[:2])}{more}?"
