"""What vLLM and tpu-inference read from the environment, set before they are imported."""

import importlib.metadata
import os
from pathlib import Path

from maxtext.config.errors import ConfigError

INSTALL = "make install-vllm"
_PACKAGE = "vllm-tpu"

_ALWAYS = {
    # One process: errors reach the caller, and the devices are this process's.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # A mesh with the axes `attn_dp` and `expert` beside `data` and `model`.
    "NEW_MODEL_DESIGN": "1",
    # Our own text goes to stdout.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
_OFF_TPU = {
    "JAX_PLATFORMS": "cpu",
    # Else libtpu and tpu-inference ask a metadata server for these, and wait for it.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_NAME": "none",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Shapes are compiled when they come up, as by `maxtext.decode`.
    "SKIP_JAX_PRECOMPILE": "1",
}


def require_installed() -> None:
    """Raises ConfigError where vLLM is missing; looks, imports nothing."""
    if not installed():
        raise ConfigError(
            f"vLLM is not installed here; `{INSTALL}` makes an environment with it, .venv-vllm: "
            "run .venv-vllm/bin/python -m maxtext.vllm_decode"
        )


def installed() -> bool:
    """Whether this environment has vLLM with tpu-inference."""
    try:
        importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def off_tpu() -> bool:
    """Whether JAX is to run on something else than TPUs; touches no device."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    if asked:
        return "tpu" not in asked
    return not any(Path("/dev").glob("accel[0-9]*")) and not any(Path("/dev/vfio").glob("[0-9]*"))


def set_up_environment() -> None:
    """Sets what is not set yet; before vllm, tpu_inference and jax are imported."""
    values = {**_ALWAYS, **(_OFF_TPU if off_tpu() else {})}
    for name, value in values.items():
        os.environ.setdefault(name, value)
