"""What the machine at hand decides: what `auto` means on it, and JAX's process-wide settings."""

import contextlib
import importlib.util
from collections.abc import Generator
from pathlib import Path

import jax

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema import ComputeConfig, RunConfig
from maxtext.ops.attention import FLASH_BLOCK


@contextlib.contextmanager
def config_errors() -> Generator[None]:
    """Turns a ValueError that the user's settings caused into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError([Problem("", line) for line in str(error).splitlines()]) from error


def resolve(config: ComputeConfig, backend: str, length: int) -> ComputeConfig:
    """The config with each `auto` replaced by what it means on this backend.

    Raises:
        ValueError: The backend or the row length does not allow `attention=flash`.
    """
    dtype, attention = config.dtype, config.attention
    if dtype == "auto":
        dtype = "float32" if backend == "cpu" else "bfloat16"
    if attention == "autoselected":
        fits = backend == "tpu" and length % FLASH_BLOCK == 0
        attention = "flash" if fits else "dot_product"
    if attention == "flash" and backend == "cpu":
        raise ValueError("attention=flash: its kernels are for TPU and GPU; use dot_product on cpu")
    if attention == "flash" and backend == "gpu" and importlib.util.find_spec("tokamax") is None:
        raise ValueError("attention=flash on GPU needs tokamax: pip install 'maxtext[gpu]'")
    if attention == "flash" and length % FLASH_BLOCK:
        raise ValueError(
            f"attention=flash: max_target_length={length} is not a multiple of {FLASH_BLOCK}"
        )
    return config.model_copy(update={"dtype": dtype, "attention": attention})


def set_up_jax(run: RunConfig, compute: ComputeConfig) -> None:
    """Applies the settings that JAX keeps for the whole process.

    A compilation cache that the environment names (`JAX_COMPILATION_CACHE_DIR`) goes first.
    """
    if run.jax_cache_dir and jax.config.jax_compilation_cache_dir is None:
        folder = Path(run.jax_cache_dir).expanduser()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    precision = compute.matmul_precision
    jax.config.update("jax_default_matmul_precision", None if precision == "default" else precision)
