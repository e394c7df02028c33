"""Whether a checkpoint's arrays are those that a run wants."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from maxtext.checkpoint.errors import CheckpointMismatch

_MAX_LINES = 10


@dataclasses.dataclass(frozen=True)
class _Difference:
    """One name whose arrays differ; None where there is no such array."""

    name: str
    saved: jax.ShapeDtypeStruct | None
    wanted: jax.ShapeDtypeStruct | None

    def __str__(self) -> str:
        if self.saved is None:
            return f"checkpoint has no {self.name}, this run wants {_describe(self.wanted)}"
        has = f"checkpoint has {self.name} {_describe(self.saved)}"
        if self.wanted is None:
            return f"{has}, this run has no such array"
        return f"{has}, this run wants {_describe(self.wanted)}"

    @property
    def type_only(self) -> bool:
        if self.saved is None or self.wanted is None:
            return False
        return self.saved.shape == self.wanted.shape


def _describe(leaf: jax.ShapeDtypeStruct | None) -> str:
    assert leaf is not None
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _differences(
    saved: Mapping[str, jax.ShapeDtypeStruct], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> list[_Difference]:
    names = [*wanted, *(name for name in saved if name not in wanted)]
    pairs = [_Difference(name, saved.get(name), wanted.get(name)) for name in names]
    return [
        pair
        for pair in pairs
        if pair.saved is None
        or pair.wanted is None
        or (pair.saved.shape, pair.saved.dtype) != (pair.wanted.shape, pair.wanted.dtype)
    ]


def require_match(
    saved: Mapping[str, Mapping[str, Any]],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    *,
    where: str,
) -> None:
    """Compares names, shapes and types.

    Args:
        saved: `shape` and `dtype` of each array of the checkpoint.
        wanted: The arrays of this run.
        where: The checkpoint, as the user reads it.

    Raises:
        CheckpointMismatch: They differ; the first ten differences, a line each.
    """
    there = {
        name: jax.ShapeDtypeStruct(tuple(leaf["shape"]), leaf["dtype"])
        for name, leaf in saved.items()
    }
    different = _differences(there, wanted)
    if not different:
        return
    lines = [str(one) for one in different[:_MAX_LINES]]
    if len(different) > _MAX_LINES:
        lines.append(f"and {len(different) - _MAX_LINES} more")
    if all(one.type_only for one in different):
        dtype = there[different[0].name].dtype
        moments = all("/mu/" in one.name for one in different)
        key = "mu_dtype" if moments else "weight_dtype"
        lines.append(f"only the types differ: {key}={dtype} takes it as it is")
    elif all(one.name.startswith("opt_state/") for one in different):
        lines.append(
            "only the optimizer's state differs: load_parameters_path in a new run takes the "
            "weights alone"
        )
    total = len(there.keys() | wanted.keys())
    listed = "\n".join(f"  {line}" for line in lines)
    raise CheckpointMismatch(
        f"{where} is not of this model: {len(different)} of {total} arrays differ\n{listed}"
    )
