import os

import pytest

from maxtext.config.load import load
from maxtext.parallel.distributed import initialize, set_up_virtual_devices

EIGHT = "--xla_force_host_platform_device_count=8"


def test_virtual_devices_get_threads_and_one_order_of_collectives(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", EIGHT)
    monkeypatch.setenv("NPROC", "")
    monkeypatch.delenv("NPROC")
    set_up_virtual_devices()
    assert os.environ["NPROC"] == "32"
    assert os.environ["XLA_FLAGS"].split() == [
        EIGHT,
        "--xla_cpu_enable_concurrency_optimized_scheduler=false",
    ]


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1"}, "JAX_NUM_PROCESSES and JAX_PROCESS_ID must"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, None),
        # A batch script is one process, whatever SLURM_NTASKS says.
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}, None),
    ],
)
def test_several_processes_need_one_name(environ, says) -> None:
    with pytest.raises(ValueError, match="run_name is empty"):
        initialize(load([], {}).config.run, environ)
    if says is not None:
        with pytest.raises(ValueError, match=says):
            initialize(load(["run_name=r"], {}).config.run, environ)


def test_a_batch_script_is_a_process_of_its_own() -> None:
    initialize(load([], {}).config.run, {"SLURM_NTASKS": "2"})
