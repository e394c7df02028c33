"""Input speed: tokens a second of each source, how full rows are, what a real run waits for data.

    python benchmarks/data.py [--sources jsonl txt ...] [--seconds 5] [--train 110m] [--steps 5]

One JSON line a result. The text is data/shakespeare-train.jsonl, split at blank lines: speeches,
most of them short. `tokens_per_second` is what one process makes in one thread, batches of 8 rows
of 512, from the second batch on. `filled` is the share of pairs that are no padding.
`input_wait_share` is the time that the loop of a real run stood still for data, over the time of
its steps, from the second step on; the goal is under 0.01 for the 110M model.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from train_step import MODELS, model_keys

PLAYS = Path(__file__).parents[1] / "data" / "shakespeare-train.jsonl"
ROWS, LENGTH = 8, 512
TEXT_FILES = 2000
SOURCES = ("jsonl", "txt", "parquet", "arrayrecord", "hf", "stream", "mixture", "chats")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}|\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Speeches, as files of every kind in one folder."""

    folder: Path
    texts: list[str]

    def keys(self, source: str) -> dict[str, Any]:
        """The settings that read them as `source`; writes the files."""
        write: Callable[[], dict[str, Any]] = getattr(self, f"_{source}")
        return {"dataset_type": "grain"} | write()

    def _lines(self, name: str, records: list[Any]) -> str:
        path = self.folder / name
        path.write_text("".join(json.dumps(one) + "\n" for one in records))
        return str(path)

    def _jsonl(self) -> dict[str, Any]:
        records = [{"text": text} for text in self.texts]
        return {"grain_train_files": self._lines("a.jsonl", records)}

    def _txt(self) -> dict[str, Any]:
        for number, text in enumerate(self.texts[:TEXT_FILES]):
            (self.folder / f"{number}.txt").write_text(text)
        return {"grain_train_files": f"{self.folder}/*.txt"}

    def _parquet(self) -> dict[str, Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": self.texts}), self.folder / "a.parquet")
        return {"grain_train_files": f"{self.folder}/a.parquet"}

    def _arrayrecord(self) -> dict[str, Any]:
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(f"{self.folder}/a.arrayrecord", "group_size:1")
        for text in self.texts:
            writer.write(text.encode())
        writer.close()
        return {"grain_train_files": f"{self.folder}/a.arrayrecord"}

    def _hf(self) -> dict[str, Any]:
        return {
            "dataset_type": "hf",
            "hf_path": "json",
            "hf_train_files": self._jsonl()["grain_train_files"],
        }

    def _stream(self) -> dict[str, Any]:
        return self._hf() | {"hf_streaming": True}

    def _mixture(self) -> dict[str, Any]:
        half = len(self.texts) // 2
        one = self._lines("b.jsonl", [{"text": text} for text in self.texts[:half]])
        other = self._lines("c.jsonl", [{"text": text} for text in self.texts[half:]])
        return {"grain_train_files": f"{one},0.7;{other},0.3"}

    def _chats(self) -> dict[str, Any]:
        roles = ("user", "assistant")
        pairs = zip(self.texts[::2], self.texts[1::2], strict=False)
        records = [
            {"messages": [{"role": r, "content": t} for r, t in zip(roles, pair, strict=True)]}
            for pair in pairs
        ]
        (self.folder / "t.jinja").write_text(TEMPLATE)
        return {
            "grain_train_files": self._lines("d.jsonl", records),
            "train_data_columns": "messages",
            "use_sft": True,
            "chat_template": f"{self.folder}/t.jinja",
        }


def speeches() -> list[str]:
    """The plays, split at blank lines."""
    scenes = [json.loads(line)["text"] for line in PLAYS.read_text().splitlines()]
    return [part for scene in scenes for part in scene.split("\n\n") if part.strip()]


def train_tokenizer(folder: Path, texts: list[str]) -> dict[str, Any]:
    """The settings of a byte-level BPE of 8192 tokens, trained on the text."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8192, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(texts, trainer)
    model.save(f"{folder}/tokenizer.json")
    names = dict(zip(("bos_token", "eos_token"), special, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return {"tokenizer_type": "huggingface", "tokenizer_path": str(folder)}


def batches(keys: dict[str, Any]) -> Iterator[Any]:
    """Batches as one process of a run gets them."""
    from maxtext.config.load import load
    from maxtext.data.batch import Shard
    from maxtext.data.iterators import make_train_iterator

    argv = [
        f"{key}={str(value).lower() if value is True else value}" for key, value in keys.items()
    ]
    config = load([f"max_target_length={LENGTH}", *argv], {}).config
    return make_train_iterator(config.data, rows=ROWS, shard=Shard(0, 1), vocab_size=1 << 17)


def measure(keys: dict[str, Any], seconds: float) -> dict[str, object]:
    """Speed and fill of the batches that are made in `seconds`."""
    began = time.perf_counter()
    stream = batches(keys)
    next(stream)
    opened = time.perf_counter()
    pairs = size = count = 0
    while time.perf_counter() - opened < seconds:
        batch = next(stream)
        pairs += int((batch.segments != 0).sum())
        size += batch.segments.size
        count += 1
    spent = time.perf_counter() - opened
    return {
        "tokens_per_second": round(pairs / spent),
        "filled": round(pairs / size, 4),
        "batches": count,
        "seconds_to_first_batch": round(opened - began, 2),
    }


def measure_run(model: str, steps: int, keys: dict[str, Any]) -> dict[str, object]:
    """What the loop of a real run waits for its data."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [one for one in model_keys(model, 1) if not one.startswith("dataset_type")]
        settings += [f"{key}={value}" for key, value in keys.items()]
        settings += [f"base_output_directory={folder}", f"metrics_file={folder}/metrics.jsonl"]
        settings += [f"steps={steps}", "enable_checkpointing=false", "enable_tensorboard=false"]
        command = [sys.executable, "-m", "maxtext.train", *settings]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        lines = Path(folder, "metrics.jsonl").read_text().splitlines()[1:]
    records = [json.loads(line) for line in lines]
    waited = sum(one["perf/input_wait_seconds"] for one in records)
    spent = sum(one["seconds"] for one in records)
    return {
        "benchmark": "input_wait",
        "model": model,
        "steps": len(records),
        "step_seconds": round(spent / len(records), 3),
        "input_wait_seconds": round(waited / len(records), 5),
        "input_wait_share": round(waited / (spent + waited), 5),
    }


def main() -> None:
    """Prints one JSON line a result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", nargs="*", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--train", choices=[*MODELS, "none"], default="110m")
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    texts = speeches()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HF_HOME"] = f"{folder}/hf"
        corpus = Corpus(folder, texts)
        tokenizers = {"byte": {}, "huggingface": train_tokenizer(folder, texts)}
        for source in options.sources:
            for kind, tokenizer in tokenizers.items():
                keys = corpus.keys(source) | tokenizer
                result = measure(keys, options.seconds)
                head = {"benchmark": "data", "source": source, "tokenizer": kind}
                print(json.dumps(head | result), flush=True)
        for packing in ("concat_then_split", "first_fit"):
            keys = corpus.keys("jsonl") | {"grain_packing_type": packing}
            result = measure(keys | tokenizers["huggingface"], options.seconds)
            head = {"benchmark": "packing", "kind": packing, "rows": ROWS, "length": LENGTH}
            print(json.dumps(head | result), flush=True)
        if options.train != "none":
            keys = corpus.keys("jsonl") | tokenizers["huggingface"]
            print(json.dumps(measure_run(options.train, options.steps, keys)), flush=True)


if __name__ == "__main__":
    main()
