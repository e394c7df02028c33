"""What the training loop gets from data: batches, and an iterator that can be resumed."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, Protocol, Self, cast

import numpy as np

from maxtext.parallel.params import pytree
from maxtext.types import Array, Bool, Int

type State = dict[str, Any]

# The target of a pair that no loss counts; no token id is negative.
UNCOUNTED = -1


@pytree
class Batch:
    """Rows of (input, target) pairs; numpy on the host, jax arrays once placed on devices.

    A target is the token after its input in the same document, or `UNCOUNTED` where that token is
    only read: of a chat, what others than the assistant say. A pair is padding where `segments`
    is 0; token ids never decide that.
    """

    inputs: Int[Array, "B L"]
    targets: Int[Array, "B L"]
    positions: Int[Array, "B L"]
    segments: Int[Array, "B L"]

    @property
    def counts(self) -> Bool[Array, "B L"]:
        """Which targets have a weight in the loss."""
        return (self.segments != 0) & (self.targets >= 0)


def host_batch(arrays: np.ndarray) -> Batch:
    """The four planes of an int32 array [4, rows, length], in the order of `Batch`'s fields."""
    assert arrays.ndim == 3, arrays.shape
    assert arrays.dtype == np.int32, arrays.dtype
    inputs, targets, positions, segments = cast(tuple[Array, Array, Array, Array], tuple(arrays))
    return Batch(inputs=inputs, targets=targets, positions=positions, segments=segments)


def empty_batch(rows: int, length: int) -> Batch:
    """A batch of padding: what a process feeds while others still have data."""
    return host_batch(np.zeros((4, rows, length), np.int32))


def batch_digest(batch: Batch) -> str:
    """Sixteen hex digits that differ where the numbers of two host batches do."""
    digest = hashlib.blake2b(digest_size=8)
    for field in dataclasses.fields(batch):
        digest.update(np.ascontiguousarray(getattr(batch, field.name)))
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Shard:
    """Which of the processes that feed one global batch this is."""

    process_index: int
    process_count: int

    def __post_init__(self) -> None:
        assert 0 <= self.process_index < self.process_count, self


class BatchIterator(Protocol):
    """Batches of one shape, from a position that can be saved.

    Raises `StopIteration` where the data ends. Processes need not end at the same batch: the
    number of rows that a process packs its documents into is known only once they are tokenized.
    So processes agree on the end: training ends where the data of the first one do, evaluation
    feeds `empty_batch` where data ended early.
    """

    def __iter__(self) -> Self: ...

    def __next__(self) -> Batch: ...

    def get_state(self) -> State:
        """What JSON can hold of the position after the batch that was returned last."""
        ...

    def set_state(self, state: State) -> None:
        """Goes to a saved position.

        Raises:
            ValueError: The state was saved by another kind of iterator or with settings that
                make another stream of batches; each difference is named.
        """
        ...

    def reset(self) -> None:
        """Goes back to the first batch."""
        ...

    def close(self) -> None:
        """Ends worker processes; `reset` and `set_state` start them again."""
        ...


def own_state(states: Sequence[State], shard: Shard) -> State:
    """What one process goes on from, of the states that all processes of a run saved.

    Other processes than before take up what those before left: each document goes on at the pair
    where it was left, none is lost and none comes twice, in an order that is new.
    """
    by_process = {state.get("process", 0): state for state in states}
    first = by_process[0]
    processes = first.get("processes", shard.process_count)
    if processes == shard.process_count:
        # Some states depend on no process.
        return by_process.get(shard.process_index, first)
    if "window" in first:
        raise ValueError(
            f"hf_streaming=true: {processes} processes read the stream, and {shard.process_count} "
            f"cannot go on with it; start {processes}, or take the weights alone"
        )
    deal = [[by_process[one]["document"], by_process[one]["offset"]] for one in range(processes)]
    tokens = {
        name: sum(state["tokens"][name] for state in by_process.values())
        for name in first["tokens"]
        if shard.process_index == 0
    }
    return {
        **first,
        "processes": shard.process_count,
        "process": shard.process_index,
        "dealt": [*first["dealt"], deal],
        "document": 0,
        "offset": 0,
        "tokens": {name: tokens.get(name, 0) for name in first["tokens"]},
    }


def check_state(state: State, expected: State) -> None:
    """Holds a saved state against the settings of the iterator that is to continue from it.

    Raises:
        ValueError: As `BatchIterator.set_state`.
    """
    if state.get("format") != expected["format"]:
        raise ValueError(
            f"the data iterator's state has format {state.get('format')!r}, but dataset_type and "
            f"this version make {expected['format']!r}: go on with the dataset_type it was saved "
            "with, or start a new run"
        )
    saved, now = state["settings"], expected["settings"]
    names = [name for name in {**saved, **now} if saved.get(name) != now.get(name)]
    if names:
        lines = [f"  {name}: saved {saved.get(name)!r}, now {now.get(name)!r}" for name in names]
        raise ValueError(
            "the data iterator's state was saved with other settings, under which its position "
            "means other data; restore these, or start a new run:\n" + "\n".join(lines)
        )
