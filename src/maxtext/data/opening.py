"""The sources that a config names, opened."""

import dataclasses
import os
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from maxtext.config.mixtures import Part, train_parts
from maxtext.config.schema_training import DataConfig
from maxtext.data.chat import ChatColumns
from maxtext.data.chat_template import ChatTemplate
from maxtext.data.records import Columns, Form, Source
from maxtext.data.sources import find_files, open_source
from maxtext.data.stream import Stream

type Purpose = Literal["train", "eval"]


@dataclasses.dataclass(frozen=True)
class Opened:
    """Sources, and what a saved place in them depends on.

    Attributes:
        names: What metrics call each.
        weights: How often each is read.
        settings: What must be the same where a run goes on, by the name of its key.
        stream: Is read in place of sources.
    """

    sources: tuple[Source, ...]
    names: tuple[str, ...]
    weights: tuple[Fraction, ...]
    settings: dict[str, Any]
    stream: Stream | None = None


def open_sources(config: DataConfig, purpose: Purpose) -> Opened:
    """Finds and opens what to train on, or to evaluate on.

    Raises:
        ValueError: Files, columns, weights or the chat template do not fit; the message names the
            key, or the file and the record.
    """
    form = _form(config, purpose)
    settings: dict[str, Any] = {form.key: list(form.names)}
    if isinstance(form, ChatColumns):
        template = form.template and (form.template.source, form.template.tokens)
        settings["use_sft"] = True
        settings["sft_train_on_completion_only"] = form.answers_only
        settings["chat_template"] = repr(template)
    if config.dataset_type == "hf":
        from maxtext.data.hf_dataset import open_dataset, open_stream

        if config.hf_streaming:
            stream = open_stream(config, purpose, form)
            settings["hf_path"] = stream.name
            settings["grain_shuffle_buffer_size"] = config.grain_shuffle_buffer_size
            return Opened((), ("",), (Fraction(1),), settings, stream)
        source = open_dataset(config, purpose, form)
        return Opened((source,), ("",), (Fraction(1),), settings | {"hf_path": repr(source)})
    key = f"grain_{purpose}_files"
    parts = (Part("", config.grain_eval_files, Fraction(1)),)
    if purpose == "train":
        try:
            parts = train_parts(config)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    sources = tuple(
        open_source(find_files(part.patterns, key=key), file_type=config.grain_file_type, form=form)
        for part in parts
    )
    for part, source in zip(parts, sources, strict=True):
        weight = f", weight {part.weight}" if len(parts) > 1 else ""
        name = f"{key} {part.name}".strip()
        settings[name] = f"{source} (digest {source.digest}){weight}"
    return Opened(
        sources,
        tuple(part.name for part in parts),
        tuple(part.weight for part in parts),
        settings,
    )


def _form(config: DataConfig, purpose: Purpose) -> Form:
    train = purpose == "train"
    names = config.train_data_columns if train else config.eval_data_columns
    key = f"{purpose}_data_columns"
    if not config.use_sft:
        return Columns(names, key)
    return ChatColumns(
        names,
        key,
        template=find_chat_template(config),
        answers_only=config.sft_train_on_completion_only,
    )


def find_chat_template(config: DataConfig) -> ChatTemplate | None:
    """The template of `chat_template`, or of the tokenizer where it has one.

    Raises:
        ValueError: It is no template.
    """
    from maxtext.data.huggingface_tokenizer import load_chat_template

    path = Path(os.path.expanduser(config.tokenizer_path))
    folder = None
    if config.tokenizer_type == "huggingface":
        folder = path if path.is_dir() else path.parent
    return load_chat_template(config.chat_template, folder)
