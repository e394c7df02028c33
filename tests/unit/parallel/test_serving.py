"""The meshes and tables of serving."""

from collections.abc import Sequence

import jax
import numpy as np
import pytest

from maxtext.config.load import load
from maxtext.parallel.layout import Layout
from maxtext.parallel.serving import serving_layout


def layout(argv: Sequence[str], **mesh: object) -> Layout:
    config = load(["base_num_query_heads=16", *argv], {}).config
    changed = config.mesh.model_copy(update=mesh)
    return serving_layout(changed, config.model, jax.devices())


@pytest.mark.parametrize(("tensor", "kv_heads"), [(8, 2), (8, 1), (4, 2), (4, 1), (2, 1)])
@pytest.mark.parametrize("weights", ["replicated", "sharded"])
def test_heads_of_a_device_and_where_its_requests_lie(
    tensor: int, kv_heads: int, weights: str
) -> None:
    made = layout(
        [f"ici_tensor_parallelism={tensor}", f"base_num_kv_heads={kv_heads}"],
        enable_dp_attention=True,
        attn_dp_weights=weights,
    )
    groups = tensor // kv_heads
    assert dict(made.mesh.shape) == {
        "data": 8 // tensor,
        "attn_dp": groups,
        "expert": 1,
        "model": kv_heads,
    }
    # The copies that fsdp takes by default are those of data.
    assert made.ways("pages") == made.ways("attn_activation_length") == 8 // kv_heads
    assert made.ways("cache_heads") == made.ways("kv_heads") == kv_heads
    assert made.ways("heads") == (tensor if weights == "sharded" else kv_heads)
    assert made.ways("mlp") == made.ways("vocab") == made.ways("activation_mlp") == tensor


def test_key_and_value_heads_that_divide_over_all_devices_are_stored_once() -> None:
    made = layout(["ici_tensor_parallelism=8", "base_num_kv_heads=8"], ici_attn_dp_parallelism=4)
    assert made.ways("kv_heads") == made.ways("attn_projection_kv_heads") == 8
    assert made.ways("cache_heads") == 2


def test_a_device_projects_to_heads_that_its_place_in_each_group_attends_with() -> None:
    # 16 heads over model 2 x attn_dp 4: two heads each, of the half that its column has.
    made = layout(["ici_tensor_parallelism=8", "base_num_kv_heads=2"], enable_dp_attention=True)
    few = made.sharding(("heads",), (16,)).devices_indices_map((16,))
    many = made.sharding(("activation_heads",), (16,)).devices_indices_map((16,))
    for (data, group, _, column), device in np.ndenumerate(made.mesh.devices):
        first = 2 * (group + 4 * column)
        assert few[device][0] == slice(first, first + 2)
        assert many[device][0] == slice(8 * column, 8 * column + 8)
        assert data == 0


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_one_group_is_plain_tensor_parallelism(kv_heads: int) -> None:
    argv = ["ici_tensor_parallelism=8", f"base_num_kv_heads={kv_heads}"]
    assert layout(argv, enable_dp_attention=True, ici_attn_dp_parallelism=1) == layout(argv)
