"""The weights of `tiny_engine` where vLLM finds them."""

from pathlib import Path

import numpy as np

from maxtext.checkpoint.pieces import Leaf, WeightsWriter
from maxtext.models.decoder import Model
from maxtext.parallel.params import named_leaves
from tiny import LENGTH
from tiny_engine import tiny_served, weights


def write_checkpoint(folder: Path, *argv: str, step: int = 0, params: Model | None = None) -> None:
    """Those of T0 with `argv`, or others of it, as a step of a checkpoint."""
    served = tiny_served(*argv)
    writer = WeightsWriter(folder / str(step))
    for name, leaf in named_leaves(params or weights(served)).items():
        writer.add(name, Leaf(leaf.shape, leaf.dtype), stacked=name.startswith("decoder/layers/"))
        writer.write(name, np.asarray(leaf), at=0)
    model = served.config.model.model_dump(mode="json", by_alias=True)
    writer.finish({**model, "tokenizer_type": "byte", "max_target_length": LENGTH})
    writer.close()
