"""Settings that name files: what must exist exists, what will be written can be.

`os.path` answers where `pathlib` raises: to names that are too long and to homes of nobody.
"""

import glob
import os
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from maxtext.config.errors import Clash
from maxtext.config.mixtures import train_parts
from maxtext.config.schema import Config
from maxtext.config.schema_training import CheckpointConfig, DataConfig
from maxtext.config.trained import find_model, step_folder

_LONGEST_NAME = 255
# What `grain_file_type` is for each; files that are compressed cannot be read from anywhere.
SUFFIXES: Mapping[str, str] = {
    ".jsonl": "jsonl",
    ".txt": "txt",
    ".parquet": "parquet",
    ".arrayrecord": "arrayrecord",
    ".array_record": "arrayrecord",
}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def clashes(config: Config, user_keys: Set[str], *, training: bool) -> Iterator[Clash]:
    """Every path of `config` that cannot be what its key needs; reads no file's content.

    Args:
        config: Valid by the schema.
        user_keys: The keys that the user set.
        training: False leaves out what only training reads or writes.
    """
    yield from _tokenizer(config.data)
    yield from checkpoint_clashes(config.checkpoint)
    if "jax_cache_dir" in user_keys:
        yield from _cache(config.run.jax_cache_dir)
    if not training:
        yield from _trained(config)
        yield from _prompts(config)
    if training:
        yield from _data(config)
        yield from _output(config)
        yield from _metrics_file(config)
        yield from _local_checkpoints(config)


def _remote(path: str) -> str:
    """Why a path with a scheme does not work, as the end of a hint."""
    return "remote files must be copied or mounted first" if "://" in path else ""


def _tokenizer(data: DataConfig) -> Iterator[Clash]:
    if data.tokenizer_type == "byte":
        return
    name = {"huggingface": "tokenizer.json", "sentencepiece": "tokenizer.model"}[
        data.tokenizer_type
    ]
    keys = ("tokenizer_path", "tokenizer_type")
    hint = f"give a local folder that holds a {name}, or that file"
    if not data.tokenizer_path:
        yield Clash(keys, f"the {data.tokenizer_type} tokenizer needs a path", hint)
        return
    path = Path(os.path.expanduser(data.tokenizer_path))
    file = path / name if os.path.isdir(path) else path
    if not os.path.isfile(file):
        yield Clash(keys, f"there is no file {file}", _remote(data.tokenizer_path) or hint)
    elif not os.access(file, os.R_OK):
        yield Clash(keys, f"{file} cannot be read", "see its permissions")


def checkpoint_clashes(checkpoint: CheckpointConfig) -> Iterator[Clash]:
    """What is to be loaded and is not there."""
    for key in ("load_parameters_path", "load_full_state_path"):
        path: str = getattr(checkpoint, key)
        weights_only = key == "load_parameters_path"
        if not path or (find_model if weights_only else step_folder)(path) is not None:
            continue
        hint = "give a run's folder, its `checkpoints`, or one step in there"
        if weights_only:
            hint += ", or a Hugging Face folder, which has a config.json"
        exists = os.path.exists(os.path.expanduser(path))
        message = "there is no checkpoint in it" if exists else "does not exist"
        yield Clash((key,), message, _remote(path) or hint)


def _trained(config: Config) -> Iterator[Clash]:
    if config.checkpoint.load_parameters_path:
        return
    keys = ("load_parameters_path", "run_name")
    hint = "give load_parameters_path, or the run_name of a run in base_output_directory"
    if not config.run.run_name:
        yield Clash(keys, "nothing says which model to use", hint)
        return
    folder = os.path.join(config.run.base_output_directory, config.run.run_name)
    if step_folder(folder) is None:
        message = f"there is no checkpoint in {folder}"
        yield Clash(("run_name", "base_output_directory"), message, hint)


def _prompts(config: Config) -> Iterator[Clash]:
    if config.decode.prompts_file and not _readable(config.decode.prompts_file):
        hint = _remote(config.decode.prompts_file)
        yield Clash(("prompts_file",), "must be a file that can be read", hint)
    yield from _chat_template(config.data.chat_template)


def _chat_template(file: str) -> Iterator[Clash]:
    if file and not _readable(file):
        hint = "give a Jinja file, not its content"
        yield Clash(("chat_template",), "must be a file that can be read", hint)


def _readable(file: str) -> bool:
    file = os.path.expanduser(file)
    return os.path.isfile(file) and os.access(file, os.R_OK)


def _data(config: Config) -> Iterator[Clash]:
    data = config.data
    if data.use_sft:
        yield from _chat_template(data.chat_template)
    if data.dataset_type == "hf":
        yield from _data_folder(data.hf_path)
    if data.dataset_type != "grain":
        return
    mixture = data.grain_train_mixture_config_path
    key = "grain_train_mixture_config_path" if mixture else "grain_train_files"
    try:
        parts = train_parts(data)
    except ValueError as error:
        yield Clash((key,), str(error))
        return
    for part in parts:
        yield from _patterns(key, part.patterns, data)
    if config.training.eval_interval >= 0:
        yield from _eval_files(data)


def _eval_files(data: DataConfig) -> Iterator[Clash]:
    key = "grain_eval_files"
    if ";" in data.grain_eval_files:
        hint = "all of the files are read once: separate them by commas"
        yield Clash((key,), "evaluation knows no weights", hint)
        return
    yield from _patterns(key, data.grain_eval_files, data)


def _data_folder(path: str) -> Iterator[Clash]:
    """A path that is clearly no name of the hub must be there."""
    expanded = os.path.expanduser(path)
    local = path.startswith((".", "/", "~")) or path.count("/") > 1 or "://" in path
    if local and not os.path.exists(expanded):
        hint = "give a local folder, the name of a data set of the hub, or a format such as json"
        yield Clash(("hf_path",), f"there is no folder {expanded}", _remote(path) or hint)


def _patterns(key: str, patterns: str, data: DataConfig) -> Iterator[Clash]:
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        expanded = os.path.expanduser(pattern)
        # A file may have a glob's characters in its name.
        found = [expanded] if os.path.exists(expanded) else glob.glob(expanded, recursive=True)
        files = [name for name in found if os.path.isfile(name)]
        if not files:
            yield Clash((key,), *_no_match(pattern, found))
        elif data.grain_file_type == "auto":
            yield from _suffix(key, files)
        for name in files:
            if not os.access(name, os.R_OK):
                yield Clash((key,), f"{name} cannot be read", "see its permissions")


def _no_match(pattern: str, found: list[str]) -> tuple[str, str]:
    if found:
        example = os.path.join(found[0], "*.jsonl")
        return f"{found[0]} is a folder", f"name the files in it, such as '{example}'"
    where = f"paths are relative to {os.getcwd()}"
    return f"no file matches {pattern!r}", _remote(pattern) or where


def _suffix(key: str, files: list[str]) -> Iterator[Clash]:
    for name in files:
        if name.endswith(COMPRESSED):
            yield Clash((key,), f"{name} is compressed", "unpack it: records in it cannot be found")
            return
        if not name.endswith(tuple(SUFFIXES)):
            message = f"the format of {name} is not known from its name"
            hint = f"known are {', '.join(SUFFIXES)}; grain_file_type says it for others"
            yield Clash((key, "grain_file_type"), message, hint)
            return


def _output(config: Config) -> Iterator[Clash]:
    key, directory = "base_output_directory", config.run.base_output_directory
    writers = {
        name: folder
        for name, writes, folder in (
            ("enable_checkpointing", config.checkpoint.enable_checkpointing, "checkpoints"),
            ("enable_tensorboard", config.metrics.enable_tensorboard, "tensorboard"),
            ("profiler", bool(config.profile.profiler), "tensorboard"),
        )
        if writes
    }
    if not writers:
        return
    if not directory:
        off = {"profiler": "profiler="}
        hint = (
            f"name a folder, or set {' and '.join(off.get(one, f'{one}=false') for one in writers)}"
        )
        yield Clash((key, *writers), "there is no folder to write to", hint)
    else:
        run = os.path.join(directory, config.run.run_name)
        # A new name is made up where there is none: nothing lies in its folder.
        named = writers.values() if config.run.run_name else ("",)
        folders = [os.path.join(run, name) for name in named]
        yield from dict.fromkeys(wrong for folder in folders for wrong in _folder(key, folder))


def _cache(directory: str) -> Iterator[Clash]:
    if directory and "://" not in directory:
        yield from _folder("jax_cache_dir", directory)


def _metrics_file(config: Config) -> Iterator[Clash]:
    if not config.metrics.metrics_file:
        return
    file = Path(os.path.expanduser(config.metrics.metrics_file))
    if os.path.isdir(file):
        yield Clash(("metrics_file",), "is a folder", "name a file in it")
    elif os.path.exists(file) and not os.path.isfile(file):
        yield Clash(("metrics_file",), "is a device or a pipe", "name a file; empty writes none")
    elif os.path.exists(file) and not os.access(file, os.W_OK):
        yield Clash(("metrics_file",), "cannot be written", "see its permissions")
    else:
        yield from _folder("metrics_file", os.path.dirname(config.metrics.metrics_file))


def _local_checkpoints(config: Config) -> Iterator[Clash]:
    key, directory = "local_checkpoint_directory", config.checkpoint.local_checkpoint_directory
    if directory:
        yield from _folder(key, os.path.join(directory, config.run.run_name))


def _folder(key: str, folder: str) -> Iterator[Clash]:
    """What a key names must be, or become, a folder to write in."""
    if "://" in folder:
        yield Clash((key,), "must be a local folder", "remote storage must be mounted first")
        return
    for wrong in folder_faults(Path(os.path.expanduser(folder))):
        yield Clash((key,), wrong, "name a folder that can be written")


def folder_faults(folder: Path) -> Iterator[str]:
    """Why `folder` is not, or cannot be made, a folder to write in."""
    if folder.parts[:1] and folder.parts[0].startswith("~"):
        yield f"{folder.parts[0]} is nobody's home folder"
        return
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in folder.parts):
        yield "a name in it is too long"
    for place in (folder, *folder.parents):
        if os.path.lexists(place):
            if not place.is_dir():
                yield f"{place} is not a folder"
            elif not os.access(place, os.W_OK | os.X_OK):
                yield f"{place} cannot be written"
            return
