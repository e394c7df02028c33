"""What the machine at hand decides: what `auto` means on it, and JAX's process-wide settings."""

import contextlib
import dataclasses
import importlib.util
import logging
import os
import traceback
from collections.abc import Generator

import jax

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema import ComputeConfig, RunConfig
from maxtext.ops.flash_attention import FLASH_BLOCK

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def config_errors() -> Generator[None]:
    """Turns a ValueError that this package raised into a ConfigError.

    Each line of its text is a problem, and those indented below it are the details. One that comes
    from elsewhere is no answer to a user's settings, and keeps its traceback.
    """
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        *_, (raising, _) = traceback.walk_tb(error.__traceback__)
        if raising.f_globals["__name__"].partition(".")[0] != "maxtext":
            raise
        problems: list[Problem] = []
        for line in str(error).splitlines():
            if problems and line.startswith(" "):
                details = (*problems[-1].details, line.strip())
                problems[-1] = dataclasses.replace(problems[-1], details=details)
            else:
                problems.append(Problem("", line.strip()))
        raise ConfigError(problems) from error


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

    Raises:
        ConfigError: There are no devices of the kind that the environment asks for.
    """
    if run.jax_cache_dir and jax.config.jax_compilation_cache_dir is None:
        _use_cache(os.path.expanduser(run.jax_cache_dir))
    precision = compute.matmul_precision
    jax.config.update("jax_default_matmul_precision", None if precision == "default" else precision)
    # Else a traceback ends in this package where JAX raised the error: see `config_errors`.
    jax.config.update("jax_traceback_filtering", "off")
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        # JAX asserts that there is a backend where the one asked for is known but not installed.
        asked = jax.config.jax_platforms
        hint = "JAX_PLATFORMS= takes what there is, JAX_PLATFORMS=cpu the processor"
        why = str(error).partition(" (set ")[0] or "there is no such device"
        raise ConfigError([Problem("JAX_PLATFORMS", why, value=asked, hint=hint)]) from error


def _use_cache(folder: str) -> None:
    """Makes JAX keep compiled programs in a folder, where it can be written."""
    if "://" not in folder:
        try:
            if folder.startswith("~"):
                raise FileNotFoundError(0, "there is no home folder", folder)
            os.makedirs(folder, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(0, "no permission to write", folder)
        except OSError as error:
            _logger.info("programs are compiled anew: %s: %s", folder, error.strerror)
            return
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
