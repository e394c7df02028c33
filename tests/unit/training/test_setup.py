import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from maxtext.config.errors import ConfigError
from maxtext.data.batch import Shard
from maxtext.training.setup import data_shard, place
from tiny import ragged_batch, tiny_setup


def test_the_batch_of_an_update_grows_with_accumulation_and_that_of_evaluation_does_not() -> None:
    setup = tiny_setup("gradient_accumulation_steps=3", "per_device_batch_size=2", devices=8)
    assert (setup.batch_shape, setup.eval_batch_shape) == ((48, 32), (16, 32))
    other = tiny_setup("eval_per_device_batch_size=3", devices=8)
    assert (other.batch_shape, other.eval_batch_shape) == ((8, 32), (24, 32))


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (
            ("per_device_batch_size=0.3",),
            "per_device_batch_size=0.3 x 8 devices = 2.4 rows; it must be a whole number",
        ),
        (
            ("per_device_batch_size=0.5",),
            "per_device_batch_size: 4 rows a forward pass do not divide over the 8 devices that "
            "split the batch; use a multiple of 1",
        ),
        (
            ("eval_per_device_batch_size=0.5",),
            "eval_per_device_batch_size: 4 rows a forward pass do not divide over the 8 devices "
            "that split the batch; use a multiple of 1",
        ),
        (
            ("ici_tensor_parallelism=4",),
            "decoder/layers/self_attention/key/kernel, decoder/layers/self_attention/value/kernel: "
            "'kv_heads' of size 2 does not divide over tensor 4",
        ),
        (
            ("ici_context_parallelism=2", "max_target_length=30"),
            "max_target_length=30: context 2 takes rows of a multiple of 4 tokens; use 28 or 32",
        ),
        (
            ("ici_context_parallelism=2", "dropout_rate=0.1"),
            "dropout_rate=0.1: context parallelism reorders the tokens of a row, and dropout would "
            "zero others than on one device; add context_parallel_load_balance=false",
        ),
        (("ici_fsdp_parallelism=3",), "ici_fsdp_parallelism=3: 3 does not fit 8 devices"),
    ],
)
def test_what_does_not_fit_the_devices_is_the_users_error(argv: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        tiny_setup(*argv, devices=8)


def test_rows_may_be_split_over_fewer_devices_than_there_are() -> None:
    setup = tiny_setup("ici_tensor_parallelism=2", "per_device_batch_size=0.5", devices=8)
    assert setup.batch_shape == (4, 32)


def test_dropout_does_not_mind_rows_that_are_split_in_order() -> None:
    context = ("ici_context_parallelism=2", "dropout_rate=0.1")
    setup = tiny_setup(*context, "context_parallel_load_balance=false", devices=8)
    assert setup.loss_fn(dropout=True).dropout_rate == 0.1
    tiny_setup(*context, "enable_dropout=false", devices=8)


@dataclasses.dataclass(frozen=True)
class FakeDevice:
    id: int
    process_index: int


class FakeSharding(NamedSharding):
    """Rows split over `parts` of 8 devices that belong to four processes."""

    def __init__(self, parts: int, owners: list[int]) -> None:
        mesh = Mesh(np.asarray(jax.devices()).reshape(parts, -1), ("rows", "rest"))
        super().__init__(mesh, P("rows"))
        self.owners = owners

    def devices_indices_map(self, global_shape):
        found = super().devices_indices_map(global_shape)
        return {FakeDevice(one.id, self.owners[one.id]): index for one, index in found.items()}


@pytest.mark.parametrize(
    ("parts", "owners", "process", "want"),
    [
        (8, [0] * 8, 0, (Shard(0, 1), 16)),
        (8, [0, 0, 1, 1, 2, 2, 3, 3], 2, (Shard(2, 4), 4)),
        (8, [3, 3, 2, 2, 1, 1, 0, 0], 3, (Shard(0, 4), 4)),
        # Tensor parallelism across processes: they hold the same rows.
        (2, [0, 0, 1, 1, 2, 2, 3, 3], 1, (Shard(0, 2), 8)),
        (2, [0, 0, 1, 1, 2, 2, 3, 3], 2, (Shard(1, 2), 8)),
        (1, [0, 0, 1, 1, 2, 2, 3, 3], 3, (Shard(0, 1), 16)),
        # Devices of a process that do not lie beside each other.
        (8, [0, 1, 0, 1, 0, 1, 0, 1], 1, (Shard(1, 2), 8)),
    ],
)
def test_each_process_feeds_the_rows_that_its_devices_hold(
    parts: int,
    owners: list[int],
    process: int,
    want: tuple[Shard, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: process)
    assert data_shard(FakeSharding(parts, owners), (16, 32)) == want


@pytest.mark.parametrize(
    ("parts", "owners"),
    [
        (4, [0, 0, 0, 1, 1, 1, 2, 2]),  # rows in part the same
        (8, [0, 0, 0, 0, 0, 0, 1, 1]),  # not as many
    ],
)
def test_rows_that_processes_share_in_part_are_refused(parts: int, owners: list[int]) -> None:
    with pytest.raises(ValueError, match=r"16 rows do not lie evenly over \d processes"):
        data_shard(FakeSharding(parts, owners), (16, 32))


def test_a_placed_batch_has_its_numbers_and_lies_as_the_batch_does() -> None:
    setup = tiny_setup("ici_fsdp_parallelism=4", "ici_tensor_parallelism=2", devices=8)
    sharding = setup.batch_sharding(setup.batch_shape)
    batch = ragged_batch()
    placed = place(batch, sharding=sharding, shape=setup.batch_shape)
    for name in ("inputs", "targets", "positions", "segments"):
        array = getattr(placed, name)
        np.testing.assert_array_equal(array, getattr(batch, name))
        assert array.sharding == sharding
        assert array.sharding.shard_shape(array.shape) == (2, 32)
