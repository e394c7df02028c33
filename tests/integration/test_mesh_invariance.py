"""The same seed, data and global batch take the same steps, however they are computed."""

import itertools
import json
import math
import os
import subprocess
import sys

import pytest

from tiny import GEMMA3

ROWS = 32
KV_SPLIT_OFF = "{kv_heads: [], activation_kv_heads: []}"
MESHES = {
    "data 8": {"ici_data_parallelism": 8, "ici_fsdp_parallelism": 1},
    "fsdp 8": {"ici_fsdp_parallelism": 8},
    "tensor 8": {"ici_tensor_parallelism": 8, "base_num_kv_heads": 8},
    "fsdp 2 x tensor 4": {"ici_tensor_parallelism": 4, "logical_axis_rules": KV_SPLIT_OFF},
    "data 2 x fsdp 2 x tensor 2": {"ici_data_parallelism": 2, "ici_tensor_parallelism": 2},
}
# Five layers with a window and one without.
GEMMA3_KEYS = dict(key.split("=") for key in GEMMA3) | {"base_num_decoder_layers": 6}
SPLIT_ROWS = {
    "tensor_sequence 4": {
        "ici_tensor_sequence_parallelism": 4,
        "logical_axis_rules": KV_SPLIT_OFF,
    },
    "fsdp 2 x tensor_sequence 2 x context 2": {
        "ici_fsdp_parallelism": 2,
        "ici_tensor_sequence_parallelism": 2,
        "ici_context_parallelism": 2,
    },
    "context 2": {"ici_context_parallelism": 2},
    "context 4, in order": {
        "ici_context_parallelism": 4,
        "context_parallel_load_balance": False,
    },
    "context 4, a ring": {"ici_context_parallelism": 4, "context_parallel_strategy": "ring"},
    "context 2 across slices": {"dcn_context_parallelism": 2, "dcn_data_parallelism": 1},
}
POLICIES = {
    "none": {},
    "save_qkv_proj": {},
    "save_out_proj": {},
    "minimal": {},
    "custom": {"query_proj": "device", "mlpwi_0": "device", "attention_out": "device"},
}
RUN_ALL = """
import json, sys
from maxtext import train
sys.exit(max(train.main(argv) for argv in json.loads(sys.argv[1])))
"""


def data(documents):
    return {
        "dataset_type": "grain",
        "grain_train_files": documents,
        "gradient_clipping_threshold": 0,
    }


@pytest.fixture(scope="module")
def one_device(documents, tmp_path_factory):
    """The steps on one device without any of the ways to save memory, by KV heads and packing."""
    cases = {
        (kv_heads, packing): {"base_num_kv_heads": kv_heads, "packing": packing}
        for kv_heads, packing in itertools.product((2, 8), (True, False))
    }
    return run_on_one_device(cases, documents, tmp_path_factory.mktemp("one_device"))


@pytest.fixture(scope="module")
def gemma_on_one_device(documents, tmp_path_factory):
    """The same of Gemma 3, by packing."""
    cases = {packing: GEMMA3_KEYS | {"packing": packing} for packing in (True, False)}
    return run_on_one_device(cases, documents, tmp_path_factory.mktemp("gemma"))


def run_on_one_device(cases, documents, folder):
    """The logged steps of each case, all run by one process."""
    plain = {"per_device_batch_size": ROWS, "scan_layers": "false", "remat_policy": "none"}
    commands = []
    for index, keys in enumerate(cases.values()):
        given = data(documents) | plain | keys | {"metrics_file": folder / str(index)}
        given["packing"] = str(given["packing"]).lower()
        t0 = os.path.join(os.path.dirname(__file__), "t0.yml")
        commands.append([t0, *(f"{key}={value}" for key, value in given.items())])
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(commands)],
        env=os.environ | flags,
        check=True,
        timeout=300,
    )
    files = [(folder / str(index)).read_text().splitlines() for index in range(len(cases))]
    records = [[json.loads(line) for line in lines] for lines in files]
    steps = [[record for record in one if "loss" in record] for one in records]
    return dict(zip(cases, steps, strict=True))


def assert_same_steps(got, want) -> None:
    assert len(got) == len(want) == 5
    for ours, theirs in zip(got, want, strict=True):
        assert ours["batch_digest"] == theirs["batch_digest"]
        assert ours["total_weights"] == theirs["total_weights"]
        assert math.isclose(ours["loss"], theirs["loss"], rel_tol=1e-5), (ours, theirs)
        assert math.isclose(ours["grad_norm"], theirs["grad_norm"], rel_tol=1e-4), (ours, theirs)


def check(runs, documents, one_device, mesh, **keys) -> None:
    """Runs one cell and holds it against one device."""
    accumulation = keys.get("gradient_accumulation_steps", 1)
    keys |= (MESHES | SPLIT_ROWS)[mesh] | {"per_device_batch_size": ROWS / 8 / accumulation}
    got = runs.here("cell", **data(documents), **keys)
    case = keys.get("base_num_kv_heads", 2), keys.get("packing", True)
    assert_same_steps(got, one_device[case])


def test_documents_of_one_batch_are_of_unequal_length_packed_or_not(one_device) -> None:
    packed = [step["total_weights"] for step in one_device[2, True]]
    unpacked = [step["total_weights"] for step in one_device[2, False]]
    assert len(set(unpacked)) == 5
    assert max(unpacked) < ROWS * 32 * 0.9
    assert max(packed) == ROWS * 32


def cell(mesh, *, accumulation=1, scan=True, tiles=1, packing=True):
    """A way to compute, as a test case with a name."""
    name = f"{mesh}, accumulation {accumulation}, scan {scan}, tiles {tiles}, packing {packing}"
    keys = {
        "gradient_accumulation_steps": accumulation,
        "scan_layers": scan,
        "num_vocab_tiling": tiles,
        "packing": packing,
    }
    return pytest.param(mesh, keys, id=name)


FEW = [
    cell("data 8"),
    cell("fsdp 8", accumulation=2, scan=False, tiles=4),
    cell("tensor 8", accumulation=4),
    cell("fsdp 2 x tensor 4", accumulation=2, tiles=4),
    cell("data 2 x fsdp 2 x tensor 2", accumulation=4, scan=False, tiles=4, packing=False),
]
# Packed and unpacked in turn: what differs between them does not depend on the tiles.
ALL = [
    cell(mesh, accumulation=parts, scan=scan, tiles=tiles, packing=scan == (tiles == 4))
    for mesh, parts, scan, tiles in itertools.product(MESHES, (1, 2, 4), (True, False), (1, 4))
]


@pytest.mark.parametrize(("mesh", "keys"), FEW)
def test_every_mesh_takes_the_steps_of_one_device(runs, documents, one_device, mesh, keys) -> None:
    check(runs, documents, one_device, mesh, **keys)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "keys"), ALL)
def test_every_way_to_compute_takes_the_steps_of_one_device(
    runs, documents, one_device, mesh, keys
) -> None:
    check(runs, documents, one_device, mesh, **keys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "keys"),
    [
        cell(mesh, accumulation=1 + index % 2, scan=index % 2 == 0, packing=packing)
        for index, mesh in enumerate(SPLIT_ROWS)
        for packing in (True, False)
    ],
)
def test_rows_split_over_devices_take_the_steps_of_one_device(
    runs, documents, one_device, mesh, keys
) -> None:
    check(runs, documents, one_device, mesh, **keys)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", SPLIT_ROWS)
def test_windows_over_split_rows_take_the_steps_of_one_device(
    runs, documents, gemma_on_one_device, mesh
) -> None:
    packing = mesh != "context 4, in order"
    keys = GEMMA3_KEYS | SPLIT_ROWS[mesh] | {"packing": packing, "per_device_batch_size": ROWS / 8}
    got = runs.here("cell", **data(documents), **keys)
    assert_same_steps(got, gemma_on_one_device[packing])


@pytest.mark.parametrize(
    "policy",
    [
        "custom",
        "none",
        *(
            pytest.param(policy, marks=pytest.mark.slow)
            for policy in ("minimal", "save_qkv_proj", "save_out_proj")
        ),
    ],
)
def test_every_remat_policy_takes_the_steps_of_one_device(
    runs, documents, one_device, policy
) -> None:
    keys = POLICIES[policy] | {"remat_policy": policy}
    check(runs, documents, one_device, "data 2 x fsdp 2 x tensor 2", **keys)
