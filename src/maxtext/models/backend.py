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
from maxtext.config.schema import ComputeConfig, ModelConfig, RunConfig
from maxtext.ops.flash_attention import FLASH_BLOCK
from maxtext.parallel.distributed import set_up_virtual_devices
from maxtext.parallel.rows import WHOLE, RowSplit

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


def resolve(
    config: ComputeConfig,
    model: ModelConfig,
    *,
    backend: str,
    length: int,
    split: RowSplit = WHOLE,
) -> ComputeConfig:
    """The config with each `auto` replaced by what it means on this backend.

    Args:
        length: Tokens of a row.
        split: How rows lie over devices.

    Raises:
        ValueError: The backend, the model or the row length does not allow the `attention`.
    """
    dtype, attention = config.dtype, config.attention
    if dtype == "auto":
        dtype = "float32" if backend == "cpu" else "bfloat16"
    if attention == "autoselected":
        fits = backend == "tpu" and length % (FLASH_BLOCK * split.held.size) == 0
        ring = split.ways > 1 and config.context_parallel_strategy == "ring"
        attention = "flash" if fits and not ring else "dot_product"
    if attention != "dot_product" and split.ways > 1:
        _check_split(attention, config.context_parallel_strategy, backend)
    if attention == "flash":
        _check_flash(model, backend, length=length, unit=FLASH_BLOCK * split.held.size)
    elif attention != "dot_product":
        _check_cudnn(attention, dtype, backend)
    return config.model_copy(update={"dtype": dtype, "attention": attention})


def _check_split(attention: str, strategy: str, backend: str) -> None:
    if attention != "flash" or backend == "gpu":
        raise ValueError(
            f"attention={attention}: its kernel sees whole rows, and context parallelism splits "
            "them; use dot_product"
        )
    if strategy == "ring":
        raise ValueError(
            "attention=flash: its kernel is for context_parallel_strategy=all_gather; use that, or "
            "dot_product for the ring"
        )


def _check_flash(model: ModelConfig, backend: str, *, length: int, unit: int) -> None:
    if backend == "cpu":
        raise ValueError("attention=flash: its kernels are for TPU and GPU; use dot_product on cpu")
    if backend == "gpu" and not _installed("tokamax"):
        raise ValueError("attention=flash on GPU needs tokamax: pip install tokamax")
    if backend == "gpu" and model.attn_logits_soft_cap:
        raise ValueError(
            f"attention=flash on GPU: attn_logits_soft_cap={model.attn_logits_soft_cap} is not in "
            "the kernel's backward pass; use dot_product"
        )
    if length % unit:
        raise ValueError(f"attention=flash: max_target_length={length} is not a multiple of {unit}")


def _check_cudnn(attention: str, dtype: str, backend: str) -> None:
    if backend != "gpu":
        instead = "flash or dot_product" if backend == "tpu" else "dot_product"
        raise ValueError(f"attention={attention}: cuDNN is for NVIDIA GPUs; use {instead} here")
    if attention == "cudnn_flash_te" and not _installed("transformer_engine"):
        raise ValueError(
            "attention=cudnn_flash_te needs Transformer Engine: "
            "pip install --no-build-isolation 'transformer_engine[jax]'"
        )
    if dtype == "float32":
        raise ValueError(f"attention={attention} has no float32; use dtype=bfloat16")


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def set_up_jax(run: RunConfig, compute: ComputeConfig) -> None:
    """Applies the settings that JAX keeps for the whole process.

    A compilation cache that the environment names (`JAX_COMPILATION_CACHE_DIR`) goes first.

    Raises:
        ConfigError: There are no devices of the kind that the environment asks for.
    """
    set_up_virtual_devices()
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
