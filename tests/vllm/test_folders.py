"""Hugging Face folders of any family under vLLM itself: `--config-format maxtext`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from maxtext import convert
from maxtext.decoding.load import make_engine
from maxtext.decoding.requests import Request, Sampling
from maxtext.integrations.vllm.engine import VllmEngine
from maxtext.integrations.vllm.vllm_config import CONFIG_FORMAT
from maxtext.integrations.vllm.worker import EXTENSION
from maxtext.parallel.params import initialize
from tiny import GEMMA2, LENGTH, VOCAB
from tiny_engine import prompts, run, tiny_engine, tokens_of
from vllm_checkpoints import write_checkpoint


@pytest.fixture
def folder(tmp_path) -> Path:
    """A Gemma as its makers would name it."""
    write_checkpoint(tmp_path / "run", *GEMMA2)
    assert convert.main(["to_hf", str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("gemma2", ["Gemma2ForCausalLM"])
    return tmp_path / "hf"


def arguments(folder: Path, **others: Any) -> EngineArgs:
    """For vLLM, as a server has them."""
    return EngineArgs(
        model=str(folder),
        config_format=CONFIG_FORMAT,
        load_format="dummy",
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=LENGTH,
        max_num_seqs=4,
        num_gpu_blocks_override=64,
        worker_extension_cls=EXTENSION,
        additional_config={},
        **others,
    )


@pytest.fixture
def theirs(folder) -> Iterator[VllmEngine]:
    """vLLM's engine for it, with random weights."""
    made = VllmEngine(
        LLMEngine.from_engine_args(arguments(folder)),
        decode=str,
        vocab_size=VOCAB,
        max_length=LENGTH,
        seed=0,
    )
    yield made
    made.close()


def test_a_folder_runs_with_random_weights_and_with_its_own(theirs) -> None:
    asked = [Request(tokens, Sampling(max_new_tokens=9)) for tokens in prompts(3, 14)]
    ours, served = tiny_engine(*GEMMA2)
    drawn = jax.jit(lambda: initialize(served.specs, jax.random.key(0)))()
    random = make_engine(served, drawn)
    want = [list(map(tokens_of, run(engine, asked))) for engine in (random, ours)]
    assert list(map(tokens_of, run(theirs, asked))) == want[0] != want[1]
    theirs.load_newest_weights()
    assert list(map(tokens_of, run(theirs, asked))) == want[1]


def test_asynchronous_scheduling_is_refused_before_an_engine_starts(folder) -> None:
    with pytest.raises(ValueError, match="start vLLM with --no-async-scheduling"):
        arguments(folder, async_scheduling=True).create_engine_config()


def test_a_folder_of_a_family_that_is_not_built_here_is_refused(folder) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_type": "gpt_neox"}))
    with pytest.raises(ValueError, match="model_type=gpt_neox"):
        arguments(folder).create_engine_config()
