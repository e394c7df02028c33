"""Data sets of Hugging Face's package datasets; needs the extra `hf`."""

import hashlib
import logging
import os
from pathlib import Path
from typing import Any, Literal

from maxtext.config.schema import DataConfig
from maxtext.data.records import Document, Form, require_columns

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


def open_dataset(
    config: DataConfig, purpose: Literal["train", "eval"], form: Form
) -> DatasetSource:
    """The split of `hf_path` to train on, or to evaluate on; reads its first and last row.

    What is not yet in the cache of datasets is read, or downloaded, into it first.

    Raises:
        ValueError: The package is not installed, there is no such data set or split, a file is
            damaged, or a column is missing.
    """
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            "dataset_type=hf needs the package datasets: pip install datasets, or maxtext[hf]"
        ) from error
    train = purpose == "train"
    files = config.hf_train_files if train else config.hf_eval_files
    split = config.train_split if train else config.hf_eval_split or "validation"
    name = f"hf_path={config.hf_path}"
    _logger.info("%s is read by way of the cache of datasets, in HF_HOME", name)
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        dataset = _load(datasets, config, files=files, split=split)
    except Exception as error:  # files, arrow and the network each raise their own
        cause = error.__cause__ or error
        text = " ".join(str(cause).split()) or type(cause).__name__
        raise ValueError(f"{name} (split {split!r}) cannot be read: {text}") from error
    if not len(dataset):
        raise ValueError(f"{name}:row 1: the split {split!r} has no rows")
    require_columns(dataset.column_names, form, lambda: f"{name}:row 1")
    source = DatasetSource(dataset.select_columns(list(form.names)), form, name)
    for index in sorted({0, len(source) - 1}):
        source[index]
    return source


def _load(datasets: Any, config: DataConfig, *, files: str, split: str) -> Any:
    path = os.path.expanduser(config.hf_path)
    if (Path(path) / "dataset_dict.json").is_file() or (Path(path) / "state.json").is_file():
        saved = datasets.load_from_disk(path)
        if not isinstance(saved, datasets.DatasetDict):
            return saved
        if split not in saved:
            raise ValueError(f"there are the splits {', '.join(saved)}")
        return saved[split]
    patterns = [one.strip() for one in files.split(",") if one.strip()]
    return datasets.load_dataset(
        path if os.path.exists(path) else config.hf_path,
        config.hf_name or None,
        data_dir=config.hf_data_dir or None,
        data_files={split: patterns} if patterns else None,
        split=split,
    )
