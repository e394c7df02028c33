import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from maxtext.config.errors import ConfigError
from maxtext.config.load import load
from maxtext.models.backend import config_errors, resolve, set_up_jax
from maxtext.parallel.rows import RowSplit


def resolved(backend: str, *argv: str, length: int = 512) -> tuple[str, str]:
    config = load(argv, {}).config
    compute = resolve(config.compute, config.model, backend=backend, length=length)
    return compute.dtype, compute.attention


@pytest.mark.parametrize(
    ("backend", "length", "want"),
    [
        ("cpu", 512, ("float32", "dot_product")),
        ("gpu", 512, ("bfloat16", "dot_product")),
        ("tpu", 512, ("bfloat16", "flash")),
        ("tpu", 500, ("bfloat16", "dot_product")),
    ],
)
def test_auto_means_what_the_backend_is_good_at(
    backend: str, length: int, want: tuple[str, str]
) -> None:
    assert resolved(backend, length=length) == want


def split_rows(backend: str, *argv: str, length: int = 512) -> str:
    """The attention of rows that are cut into four chunks for two devices."""
    config, split = load(argv, {}).config, RowSplit(axes=("context",), ways=2, balanced=True)
    how = {"backend": backend, "length": length, "split": split}
    return resolve(config.compute, config.model, **how).attention


def test_auto_means_what_works_on_rows_that_are_split() -> None:
    assert split_rows("tpu") == "flash"
    assert split_rows("tpu", length=256) == "dot_product"
    assert split_rows("tpu", "context_parallel_strategy=ring") == "dot_product"
    assert split_rows("gpu") == split_rows("cpu") == "dot_product"


@pytest.mark.parametrize(
    ("backend", "argv", "says"),
    [
        ("gpu", ("attention=flash",), "attention=flash: its kernel sees whole rows, and context"),
        ("gpu", ("attention=cudnn_flash_jax",), "attention=cudnn_flash_jax: its kernel sees whole"),
        (
            "tpu",
            ("attention=flash", "context_parallel_strategy=ring"),
            "attention=flash: its kernel is for context_parallel_strategy=all_gather; use that, or",
        ),
    ],
)
def test_kernels_are_refused_on_rows_that_they_cannot_split(
    backend: str, argv: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        split_rows(backend, *argv)
    with pytest.raises(ValueError, match="max_target_length=640 is not a multiple of 512"):
        split_rows("tpu", "attention=flash", length=640)


def test_what_is_given_stays() -> None:
    given = ("dtype=bfloat16", "attention=dot_product")
    assert resolved("cpu", *given) == resolved("tpu", *given) == ("bfloat16", "dot_product")


@pytest.mark.parametrize(
    ("backend", "length", "text"),
    [
        ("cpu", 512, "attention=flash: its kernels are for TPU and GPU; use dot_product on cpu"),
        ("tpu", 100, "attention=flash: max_target_length=100 is not a multiple of 128"),
        ("gpu", 512, "attention=flash on GPU needs tokamax: pip install tokamax"),
    ],
)
def test_flash_is_refused_where_it_cannot_run(
    backend: str, length: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=text.replace("[", r"\[")):
        resolved(backend, "attention=flash", length=length)


def call_in(module: str, function: Callable[[], object]) -> None:
    """Calls it as code of that module would."""
    space: dict[str, Any] = {"__name__": module}
    exec("def call(function):\n    function()", space)
    space["call"](function)


def fail_in(module: str, text: str) -> None:
    space: dict[str, Any] = {"__name__": module}
    exec("def fail(text):\n    raise ValueError(text)", space)
    space["fail"](text)


def test_a_value_error_of_ours_becomes_one_problem_a_line_and_others_pass() -> None:
    with pytest.raises(ConfigError) as caught, config_errors():
        fail_in("maxtext.data.sources", "first\nsecond")
    assert [problem.message for problem in caught.value.problems] == ["first", "second"]
    with pytest.raises(ConfigError, match=r"^first\n  second$"), config_errors():
        fail_in("maxtext.data.sources", "first\n  second")
    with pytest.raises(ValueError, match="of JAX") as passed, config_errors():
        fail_in("jax._src.lax", "of JAX")
    assert passed.type is ValueError
    with pytest.raises(KeyError), config_errors():
        raise KeyError("x")
    inner = ConfigError(caught.value.problems)
    with pytest.raises(ConfigError) as again, config_errors():
        raise inner
    assert again.value is inner


def test_an_error_that_jax_raises_is_not_the_users() -> None:
    config = load(["jax_cache_dir="], {}).config
    set_up_jax(config.run, config.compute)
    of_jax = functools.partial(jax.vmap(jnp.sin), 1.0)
    with pytest.raises(ValueError, match="vmap was requested") as passed, config_errors():
        call_in("maxtext.models.decoder", of_jax)
    assert passed.type is ValueError


def test_flash_on_gpu_is_refused_with_a_soft_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    capped = ("attention=flash", "attn_logits_soft_cap=50.0")
    assert resolved("tpu", *capped) == ("bfloat16", "flash")
    assert resolved("gpu", "attention=flash") == ("bfloat16", "flash")
    with pytest.raises(ValueError, match=r"attn_logits_soft_cap=50.0 is not in the kernel's"):
        resolved("gpu", *capped)


@pytest.mark.parametrize("attention", ["cudnn_flash_jax", "cudnn_flash_te"])
def test_cudnn_is_refused_where_it_cannot_run(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (f"attention={attention}", "packing=false")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert resolved("gpu", *given) == ("bfloat16", attention)
    with pytest.raises(ValueError, match="for NVIDIA GPUs; use dot_product here"):
        resolved("cpu", *given)
    with pytest.raises(ValueError, match="for NVIDIA GPUs; use flash or dot_product here"):
        resolved("tpu", *given)
    with pytest.raises(ValueError, match="has no float32; use dtype=bfloat16"):
        resolved("gpu", *given, "dtype=float32")


def test_transformer_engine_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    given = ("packing=false", "attention=cudnn_flash_te")
    with pytest.raises(ValueError, match=r"pip install --no-build-isolation 'transformer_engine"):
        resolved("gpu", *given)
    assert resolved("gpu", "attention=cudnn_flash_jax") == ("bfloat16", "cudnn_flash_jax")
