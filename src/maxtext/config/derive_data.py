"""Settings of data that exclude each other, found from the config alone."""

from collections.abc import Iterator, Set

from maxtext.config.errors import Clash
from maxtext.config.schema import Config
from maxtext.config.schema_training import DataConfig, TrainingConfig

_NAMES_DATA = frozenset(
    (
        "grain_train_files",
        "grain_train_mixture_config_path",
        "grain_eval_files",
        "hf_path",
        "hf_train_files",
        "hf_eval_files",
    )
)


def clashes(config: Config, user_keys: Set[str]) -> Iterator[Clash]:
    """Everything wrong with what is read, and how, in training."""
    yield from _data(config.data, user_keys)
    yield from _chats(config.data, user_keys)
    yield from _evaluation(config.data, config.training)


def _data(data: DataConfig, user_keys: Set[str]) -> Iterator[Clash]:
    yield from _data_set(data)
    if data.dataset_type == "synthetic" and "dataset_type" not in user_keys:
        for key in sorted(user_keys & _NAMES_DATA):
            if getattr(data, key):
                message = "would be ignored: the data are synthetic"
                hint = f"add dataset_type={key.partition('_')[0]}"
                yield Clash((key, "dataset_type"), message, hint)
    if data.tokenizer_path and data.tokenizer_type == "byte" and "tokenizer_type" not in user_keys:
        message = "would be ignored: the tokenizer is made of bytes"
        yield Clash(("tokenizer_path", "tokenizer_type"), message, "add tokenizer_type=huggingface")
    for key in ("train_data_columns", "eval_data_columns"):
        columns: tuple[str, ...] = getattr(data, key)
        if not columns or len(columns) != len(set(columns)):
            yield Clash((key,), "must be one or more columns, none of them twice", f"{key}=text")
    if not data.packing and "grain_packing_type" in user_keys:
        message = "would be ignored: each row holds one document"
        yield Clash(("grain_packing_type", "packing"), message, "set packing=true, or leave it out")


def _data_set(data: DataConfig) -> Iterator[Clash]:
    files, mixture = data.grain_train_files.strip(), data.grain_train_mixture_config_path
    if data.dataset_type == "grain" and not files and not mixture:
        hint = "for example grain_train_files='data/*.jsonl'"
        message = "needs grain_train_files, which is empty"
        yield Clash(("dataset_type", "grain_train_files"), message, hint)
    if files and mixture:
        message = "both say what to train on"
        yield Clash(("grain_train_files", "grain_train_mixture_config_path"), message, "keep one")
    if data.dataset_type == "hf" and data.hf_streaming:
        for key in ("grain_worker_count", "grain_worker_count_eval"):
            if getattr(data, key):
                message = "streams are read in a thread"
                yield Clash((key, "hf_streaming"), message, f"set {key}=0, or hf_streaming=false")
    if data.dataset_type == "hf" and not data.hf_path.strip():
        hint = "for example hf_path=folder, or hf_path=json hf_train_files='data/*.jsonl'"
        yield Clash(("dataset_type", "hf_path"), "needs hf_path, which is empty", hint)


def _chats(data: DataConfig, user_keys: Set[str]) -> Iterator[Clash]:
    if not data.use_sft:
        for key in ("sft_train_on_completion_only", "chat_template"):
            if key in user_keys:
                message = "would be ignored: the data are no chats"
                yield Clash((key, "use_sft"), message, "add use_sft=true")
        return
    yield from _chat_columns("train", data.train_data_columns)
    if data.tokenizer_type == "sentencepiece" and len(data.train_data_columns) == 1:
        message = "its special tokens cannot be written in a text, as chat templates do"
        hint = "use the model's tokenizer.json: tokenizer_type=huggingface"
        yield Clash(("tokenizer_type", "use_sft"), message, hint)


def _evaluation(data: DataConfig, training: TrainingConfig) -> Iterator[Clash]:
    if training.eval_interval < 0:
        return
    if data.dataset_type == "grain" and not data.grain_eval_files.strip():
        message = "evaluation needs grain_eval_files, which is empty"
        yield Clash(("eval_interval", "grain_eval_files"), message, "eval_interval=-1 turns it off")
    if data.dataset_type == "hf" and not data.hf_eval_split and not data.hf_eval_files:
        message = "evaluation needs hf_eval_split, which is empty"
        hint = "eval_interval=-1 turns it off"
        yield Clash(("eval_interval", "hf_eval_split"), message, hint)
    if data.dataset_type == "synthetic" and training.eval_steps == -1:
        message = "an evaluation on synthetic data would never end"
        yield Clash(("eval_steps", "dataset_type", "eval_interval"), message, "set eval_steps=10")
    if data.dataset_type != "synthetic" and data.use_sft:
        yield from _chat_columns("eval", data.eval_data_columns)


def _chat_columns(purpose: str, columns: tuple[str, ...]) -> Iterator[Clash]:
    if len(columns) > 2 or columns == ("text",):
        key = f"{purpose}_data_columns"
        message = "must be a column of messages, or one of prompts and one of completions"
        yield Clash((key, "use_sft"), message, f"use {key}=[messages] or [prompt,completion]")
