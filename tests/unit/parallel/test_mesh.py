import jax
import numpy as np
import pytest

from maxtext.config.load import load
from maxtext.config.schema import MeshConfig
from maxtext.parallel.layout import Layout
from maxtext.parallel.mesh import count_slices, describe, make_layout


def config_of(**degrees: object) -> MeshConfig:
    """The defaults with other degrees; a model copy, since load refuses what is not built yet."""
    return load([], {}).config.mesh.model_copy(update=degrees)


def layout_of(num_devices: int = 8, **degrees: object) -> Layout:
    return make_layout(config_of(**degrees), jax.devices()[:num_devices])


def sizes(layout: Layout) -> dict[str, int]:
    return {name: size for name, size in layout.mesh.shape.items() if size > 1}


@pytest.mark.parametrize(
    ("degrees", "want"),
    [
        ({}, {"fsdp": 8}),
        ({"ici_tensor_parallelism": 4}, {"fsdp": 2, "tensor": 4}),
        ({"ici_data_parallelism": -1, "ici_fsdp_parallelism": 1}, {"data": 8}),
        (
            {"ici_data_parallelism": 2, "ici_fsdp_parallelism": 2, "ici_tensor_parallelism": 2},
            {"data": 2, "fsdp": 2, "tensor": 2},
        ),
        ({"dcn_data_parallelism": 2}, {"data": 2, "fsdp": 4}),
        ({"num_slices": 4}, {"data": 4, "fsdp": 2}),
        ({"dcn_data_parallelism": 1, "dcn_fsdp_parallelism": 2}, {"fsdp": 8}),
        (
            {"dcn_fsdp_parallelism": 2, "dcn_data_parallelism": 2, "ici_fsdp_parallelism": 2},
            {"data": 2, "fsdp": 4},
        ),
    ],
)
def test_degrees_multiply_to_the_devices(degrees: dict, want: dict) -> None:
    assert sizes(layout_of(**degrees)) == want


def test_one_table_serves_a_single_device() -> None:
    assert sizes(layout_of(1)) == {}


def test_neighbours_share_the_fastest_axis() -> None:
    mesh = layout_of(ici_tensor_parallelism=4).mesh
    ids = np.vectorize(lambda device: device.id)(mesh.devices).squeeze()
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_a_slice_of_hsdp_holds_consecutive_devices() -> None:
    mesh = layout_of(dcn_data_parallelism=2, ici_fsdp_parallelism=4).mesh
    ids = np.vectorize(lambda device: device.id)(mesh.devices).squeeze()
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3], [4, 5, 6, 7]])


def test_an_axis_over_slices_and_within_has_the_slices_outside() -> None:
    degrees = {"dcn_fsdp_parallelism": 2, "dcn_data_parallelism": 1, "ici_data_parallelism": 2}
    mesh = layout_of(**degrees, ici_fsdp_parallelism=2).mesh
    ids = np.vectorize(lambda device: device.id)(mesh.devices).squeeze()
    # data x (slice, fsdp within the slice): each slice is 0-3 or 4-7.
    np.testing.assert_array_equal(ids, [[0, 1, 4, 5], [2, 3, 6, 7]])


@pytest.mark.parametrize(
    ("degrees", "text"),
    [
        (
            {"ici_fsdp_parallelism": 3},
            "ici_fsdp_parallelism=3: 3 does not fit 8 devices of a slice; the degrees must "
            "multiply to 8, or one of them be -1 and the rest divide it",
        ),
        (
            {"ici_fsdp_parallelism": 1},
            "ici degrees of 1: 1 does not fit 8 devices of a slice; the degrees must multiply to "
            "8, or one of them be -1 and the rest divide it",
        ),
        (
            {"ici_tensor_parallelism": 3},
            "ici_fsdp_parallelism=-1 x ici_tensor_parallelism=3: 3 does not fit 8 devices of a "
            "slice; the degrees must multiply to 8, or one of them be -1 and the rest divide it",
        ),
        (
            {"ici_tensor_parallelism": 16},
            "ici_fsdp_parallelism=-1 x ici_tensor_parallelism=16: 16 does not fit 8 devices of a "
            "slice; the degrees must multiply to 8, or one of them be -1 and the rest divide it",
        ),
        (
            {"ici_tensor_parallelism": -1},
            "only one of ici_fsdp_parallelism, ici_tensor_parallelism can be -1",
        ),
        ({"num_slices": 3}, "8 devices do not divide over 3 slices"),
        (
            {"num_slices": 4, "dcn_data_parallelism": 2},
            "dcn_data_parallelism=2: 2 does not fit 4 slices; the degrees must multiply to 4, or "
            "one of them be -1 and the rest divide it",
        ),
        (
            {"mesh_axes": ("data", "fsdp")},
            "logical_axis_rules maps 'layers' to 'stage', which is no mesh axis: data, fsdp",
        ),
    ],
)
def test_degrees_that_do_not_fit_say_what_would(degrees: dict, text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        layout_of(**degrees)
    assert str(caught.value) == text


class FakeDevice:
    platform = "gpu"

    def __init__(self, slice_index: int) -> None:
        self.slice_index = slice_index


def test_slices_are_those_of_the_devices() -> None:
    devices = [FakeDevice(index // 2) for index in range(8)]
    assert count_slices(config_of(), devices) == 4
    assert count_slices(config_of(dcn_data_parallelism=4), devices) == 4
    with pytest.raises(ValueError, match="ask for 2 slices; there are 4"):
        count_slices(config_of(num_slices=2), devices)


def test_the_mesh_is_described_in_one_line() -> None:
    assert describe(layout_of(ici_tensor_parallelism=4).mesh) == "8 cpu devices: fsdp 2 x tensor 4"
    assert describe(layout_of(1).mesh) == "1 cpu device: no split"
