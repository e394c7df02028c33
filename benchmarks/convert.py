"""Speed and memory of conversion: a generated model of 4 GB to ours and back.

    python benchmarks/convert.py [--layers 29] [--folder FOLDER]

One JSON line a conversion, each in a process of its own. `peak_rss_bytes` is all that the process
held at most, Python and JAX included; it has to stay under `limit_bytes`, twice the largest tensor
plus 1 GB, whatever the model's size. The tensors that come back are held to those that went.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np

from maxtext.checkpoint.pieces import Leaf
from maxtext.config.errors import Origin
from maxtext.config.flat import flat_source
from maxtext.config.huggingface import model_settings
from maxtext.config.trained import read_model
from maxtext.conversion.huggingface import places
from maxtext.conversion.safetensors import open_folder
from maxtext.conversion.safetensors_writer import FolderWriter

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
SHARD_BYTES = 10**9


def generate(folder: Path, layers: int) -> dict[str, Leaf]:
    """Writes a model of random bits."""
    config = CONFIG | {"num_hidden_layers": layers}
    origin = Origin("checkpoint", str(folder))
    model = read_model(flat_source(model_settings(config, origin), origin))
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    tensors = {
        name: Leaf(place.entry.their_shape(place.row_shape), bfloat16)
        for place in places(model).values()
        for name in place.names
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    writer = FolderWriter(folder, tensors, shard_bytes=SHARD_BYTES)
    draw = np.random.default_rng(0)
    for name, one in tensors.items():
        bits = draw.integers(0, 2**16, one.shape, np.uint16)
        writer.write(name, bits.view(ml_dtypes.bfloat16))
    writer.finish()
    return tensors


def measure(verb: str, source: Path, out: Path) -> tuple[float, int]:
    """Seconds and peak memory of one conversion."""
    began = time.perf_counter()
    words = [verb, str(source), str(out)]
    process = subprocess.Popen([sys.executable, "-m", "maxtext.convert", *words])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        sys.exit(f"{' '.join(words)} ended with status {status}")
    return seconds, usage.ru_maxrss * 1024


def same(before: Path, after: Path) -> bool:
    """Whether two folders hold the same tensors, bit for bit."""
    here, there = open_folder(before), open_folder(after)
    return here.keys() == there.keys() and all(
        one.kind == there[name].kind
        and one.shape == there[name].shape
        and np.array_equal(one.read().view(np.uint16), there[name].read().view(np.uint16))
        for name, one in here.items()
    )


def main() -> None:
    """Prints one JSON line a conversion."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=29)
    parser.add_argument("--folder", help="where there is room for three times the model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        tensors = generate(folder / "hf", options.layers)
        total = sum(one.num_bytes for one in tensors.values())
        largest = max(one.num_bytes for one in tensors.values())
        steps = (("from_hf", "hf", "ours"), ("to_hf", "ours", "back"))
        for verb, source, out in steps:
            seconds, peak = measure(verb, folder / source, folder / out)
            result = {
                "benchmark": "convert",
                "verb": verb,
                "model_bytes": total,
                "largest_tensor_bytes": largest,
                "seconds": round(seconds, 1),
                "megabytes_per_second": round(total / seconds / 1e6),
                "peak_rss_bytes": peak,
                "limit_bytes": 2 * largest + 10**9,
            }
            print(json.dumps(result), flush=True)
        if not same(folder / "hf", folder / "back"):
            sys.exit("what came back is not what went")


if __name__ == "__main__":
    main()
