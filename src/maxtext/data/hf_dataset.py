"""Data sets of Hugging Face's package datasets; needs the extra `hf`."""

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

from maxtext.config.schema_training import DataConfig
from maxtext.data.batch import Shard
from maxtext.data.opening import Purpose
from maxtext.data.records import Document, Form, require_columns
from maxtext.data.stream import Stream, reason

_logger = logging.getLogger(__name__)


class DatasetSource:
    """Rows of a data set, which lies as memory-mapped files in the cache of datasets.

    Attributes:
        num_bytes: Size of the columns that are read.
        digest: What differs where other rows would be read: number, size, first and last row.
    """

    def __init__(self, dataset: Any, form: Form, name: str) -> None:
        self._dataset = dataset
        self._form = form
        self._name = name
        self.num_bytes = max(1, dataset.data.nbytes)
        ends = repr((len(dataset), self.num_bytes, dataset[0], dataset[len(dataset) - 1]))
        self.digest = hashlib.blake2b(ends.encode("utf-8", "replace"), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Document:
        """One document; raises as `Source`."""

        def where() -> str:
            return f"{self._name}:row {index + 1}"

        return self._form.document(self._dataset[index], where)

    def __repr__(self) -> str:
        return f"{len(self)} rows of {self.num_bytes} bytes (digest {self.digest})"


def open_dataset(config: DataConfig, purpose: Purpose, form: Form) -> DatasetSource:
    """The split of `hf_path` to train on, or to evaluate on; reads its first and last row.

    What is not yet in the cache of datasets is read, or downloaded, into it first.

    Raises:
        ValueError: The package is not installed, there is no such data set or split, a file is
            damaged, or a column is missing.
    """
    _logger.info("%s is read by way of the cache of datasets, in HF_HOME", _name(config))
    dataset = _load(config, purpose, streaming=False)
    name = f"{_name(config)}:row 1"
    if not len(dataset):
        raise ValueError(f"{name}: the split has no rows")
    require_columns(dataset.column_names, form, lambda: name)
    source = DatasetSource(dataset.select_columns(list(form.names)), form, _name(config))
    for index in sorted({0, len(source) - 1}):
        source[index]
    return source


def open_stream(config: DataConfig, purpose: Purpose, form: Form) -> Stream:
    """The same, read as it is needed, without the cache; reads its first row. Raises likewise."""
    dataset = _load(config, purpose, streaming=True)
    name = f"{_name(config)}:row 1"
    first = None
    try:
        first = next(iter(dataset), None)
    except Exception as error:  # files, arrow and the network each raise their own
        raise ValueError(f"{name} cannot be read: {reason(error)}") from error
    if first is None:
        raise ValueError(f"{name}: the split has no rows")
    form.document(first, lambda: name)
    dataset = dataset.select_columns(list(form.names))

    def rows(shard: Shard) -> Any:
        from datasets.distributed import split_dataset_by_node

        return split_dataset_by_node(
            dataset, rank=shard.process_index, world_size=shard.process_count
        )

    parts = (config.hf_name, config.hf_data_dir, _files(config, purpose), _split(config, purpose))
    return Stream(rows, form, " ".join(filter(None, (_name(config), *parts))))


def _name(config: DataConfig) -> str:
    return f"hf_path={config.hf_path}"


def _split(config: DataConfig, purpose: Purpose) -> str:
    return config.train_split if purpose == "train" else config.hf_eval_split or "validation"


def _files(config: DataConfig, purpose: Purpose) -> str:
    return config.hf_train_files if purpose == "train" else config.hf_eval_files


def _load(config: DataConfig, purpose: Purpose, *, streaming: bool) -> Any:
    """The split, as a `Dataset` or an `IterableDataset`."""
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            "dataset_type=hf needs the package datasets: pip install datasets"
        ) from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    split = _split(config, purpose)
    path = os.path.expanduser(config.hf_path)
    try:
        if (Path(path) / "dataset_dict.json").is_file() or (Path(path) / "state.json").is_file():
            saved = _saved(datasets, path, split)
            return saved.to_iterable_dataset() if streaming else saved
        patterns = [one.strip() for one in _files(config, purpose).split(",") if one.strip()]
        return datasets.load_dataset(
            path if os.path.exists(path) else config.hf_path,
            config.hf_name or None,
            data_dir=config.hf_data_dir or None,
            data_files={split: patterns} if patterns else None,
            split=split,
            streaming=streaming,
        )
    except Exception as error:  # files, arrow and the network each raise their own
        raise ValueError(
            f"{_name(config)} (split {split!r}) cannot be read: {reason(error)}"
        ) from error


def _saved(datasets: Any, path: str, split: str) -> Any:
    saved = datasets.load_from_disk(path)
    if not isinstance(saved, datasets.DatasetDict):
        return saved
    if split not in saved:
        raise ValueError(f"there are the splits {', '.join(saved)}")
    return saved[split]
