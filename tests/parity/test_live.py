"""Models that transformers has just made: their logits here, and back there.

Runs where torch and transformers are, or where `TORCH_PYTHON` names a Python that has them.
"""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.config.huggingface import huggingface_source
from maxtext.config.load import load
from maxtext.config.schema import ModelConfig
from maxtext.config.trained import read_model
from maxtext.conversion import commands
from maxtext.conversion.loading import load_weights
from maxtext.conversion.safetensors import open_folder
from maxtext.layers.attentions import training_attend
from maxtext.layers.embeddings import project_to_vocab
from maxtext.models.backend import resolve
from maxtext.models.decoder import Model, Runtime, hidden_states, model_params, output_kernel
from maxtext.models.registry import architecture
from maxtext.parallel.mesh import make_layout
from maxtext.parallel.params import abstract
from maxtext.parallel.stages import Stages

PYTHON = os.environ.get("TORCH_PYTHON", "")
HERE = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PYTHON or HERE), reason="needs torch and transformers"),
]
TOLERANCE = 1e-4


def ask(verb: str, folder: Path) -> None:
    script = Path(__file__).with_name("live_models.py")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON or sys.executable, str(script), verb, str(folder)]
    subprocess.run(command, env=environ, check=True, timeout=300)


def our_logits(folder: Path, model: ModelConfig, tokens: np.ndarray) -> np.ndarray:
    config = load(["ici_fsdp_parallelism=1", "dcn_data_parallelism=1"], {}).config
    compute = resolve(config.compute, model, backend="cpu", length=tokens.shape[1])
    layout = make_layout(config.mesh, jax.devices()[:1])
    built = architecture(model, weight_dtype="float32")
    params = load_weights(folder, abstract(model_params(built), layout), model=model)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    runtime = Runtime(
        attend=functools.partial(training_attend, compute),
        stages=Stages(),
        dtype="float32",
    )

    def forward(params: Model, tokens: jax.Array) -> jax.Array:
        hidden = hidden_states(
            built, params, tokens, positions, jnp.ones_like(tokens), runtime=runtime
        )
        cap = model.final_logits_soft_cap
        return project_to_vocab(hidden, output_kernel(params), float32=True, soft_cap=cap)

    with jax.default_matmul_precision("highest"):
        return np.asarray(jax.jit(forward)(params, jnp.asarray(tokens, jnp.int32)))


def test_models_of_every_family_go_there_and_back(tmp_path: Path) -> None:
    ask("make", tmp_path)
    folders = sorted(path for path in tmp_path.iterdir())
    assert len(folders) == 9
    for folder in folders:
        made = np.load(folder / "logits.npz")
        model = read_model(huggingface_source(folder))
        got = our_logits(folder, model, made["tokens"])
        np.testing.assert_allclose(got, made["logits"], rtol=0, atol=TOLERANCE, err_msg=folder.name)
        print(folder.name, np.abs(got - made["logits"]).max(), made["logits"].std())
        commands.from_hf(str(folder), tmp_path / f"{folder.name}_ours")
        commands.to_hf(str(tmp_path / f"{folder.name}_ours"), tmp_path / f"{folder.name}_back")
        before, after = open_folder(folder), open_folder(tmp_path / f"{folder.name}_back")
        assert before.keys() == after.keys()
        for name, one in before.items():
            assert one.kind == after[name].kind
            assert one.read().tobytes() == after[name].read().tobytes(), name
    ask("check", tmp_path)
    for folder in folders:
        want = np.load(folder / "logits.npz")["logits"]
        assert np.array_equal(np.load(tmp_path / f"{folder.name}_back" / "logits.npy"), want)
