"""What a checkpoint holds, in words: `python -m maxtext.checkpoint inspect`."""

import datetime
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maxtext.checkpoint.errors import CheckpointError, DamagedCheckpoint
from maxtext.checkpoint.folders import WEIGHTS, list_steps, read_eval_loss, read_item
from maxtext.checkpoint.retention import best_steps
from maxtext.config.keys import RULES
from maxtext.config.sources import file_source
from maxtext.config.trained import step_folder
from maxtext.config.yaml_files import base_file, read_file

_MOST_CHARACTERS = 400
_GROUP_DEPTH = 4
_BYTES = {"float32": 4, "int32": 4, "uint32": 4, "bfloat16": 2, "float16": 2}


def find_step(path: str) -> Path:
    """The step that a path means: itself, or the newest of a folder of steps or of a run.

    Raises:
        CheckpointError: There is none.
    """
    found = step_folder(path)
    if found is None:
        why = "no checkpoint in it" if Path(path).exists() else "there is no such path"
        raise CheckpointError(f"{path}: {why}; give a run's folder, its checkpoints, or one step")
    return found.absolute()


def leaves(step: Path) -> dict[str, dict[str, Any]]:
    """`dtype`, `shape` and `checksum` of each array of a step, as written.

    Raises:
        DamagedCheckpoint: They cannot be read.
    """
    sums = item_of(step, "checksums")
    if not isinstance(sums, dict) or not isinstance(sums.get("leaves"), dict):
        raise DamagedCheckpoint(f"{step} is damaged (checksums/metadata is not what was written)")
    return sums["leaves"]


def item_of(step: Path, item: str) -> Any:
    """The JSON value `item` of a step.

    Raises:
        DamagedCheckpoint: It cannot be read.
    """
    try:
        return read_item(step, item)
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint(f"{step} is damaged ({error})") from error


def report(path: str) -> dict[str, Any]:
    """All about the step that `path` means and the steps beside it, as JSON.

    Raises:
        CheckpointError: There is no step, or its metadata cannot be read.
    """
    step = find_step(path)
    losses = {
        number: read_eval_loss(step.parent / str(number)) for number in list_steps(step.parent)
    }
    best = best_steps(losses, 1)
    config = item_of(step, "config")
    return {
        "directory": str(step.parent),
        "steps": [
            {
                "step": number,
                "written": _written(step.parent / str(number)),
                "bytes": _size(step.parent / str(number)),
                "eval_loss": loss,
                "best": number in best,
            }
            for number, loss in losses.items()
        ],
        "step": int(step.name),
        "groups": _groups(leaves(step)),
        "config": config,
        "not_default": _not_default(config),
        "data": item_of(step, "data"),
    }


def report_text(values: Mapping[str, Any]) -> str:
    """A report for people."""
    lines = [values["directory"], f"{'step':>9}  {'written':<19}  {'on disk':>9}  eval loss"]
    for one in values["steps"]:
        loss = "" if one["eval_loss"] is None else f"{one['eval_loss']:#.6g}"
        mark = "  best" if one["best"] else ""
        row = f"{one['step']:>9}  {one['written']}  {_bytes(one['bytes']):>9}  {loss}{mark}"
        lines.append(row.rstrip())
    lines += ["", f"step {values['step']}"]
    width = max(len(group["group"]) for group in values["groups"])
    lines.append(f"  {'arrays under':<{width}}  number  {'elements':>15}  {'bytes':>9}  types")
    for group in values["groups"]:
        lines.append(
            f"  {group['group']:<{width}}  {group['arrays']:>6}  {group['elements']:>15,}  "
            f"{_bytes(group['bytes']):>9}  {', '.join(group['types'])}"
        )
    lines += ["", "config, where it is not the default"]
    lines += [f"  {name}={_short(value)}" for name, value in values["not_default"].items()]
    lines += ["", f"place in the data of {len(values['data'])} process(es)"]
    lines += [f"  {_short(state)}" for state in values["data"]]
    return "\n".join(lines)


def _groups(arrays: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for name, leaf in arrays.items():
        parts = name.split("/")
        is_weight = name.startswith(WEIGHTS)
        group = "/".join(parts[:-1][:_GROUP_DEPTH]) if is_weight else parts[0]
        groups.setdefault(group, []).append(leaf)
    weights = [leaf for name, leaf in arrays.items() if name.startswith(WEIGHTS)]
    rows = [_group(name, members) for name, members in groups.items()]
    return [*rows, _group("params in all", weights), _group("all", list(arrays.values()))]


def _group(name: str, members: list[Mapping[str, Any]]) -> dict[str, Any]:
    sizes = [math.prod(leaf["shape"]) for leaf in members]
    types = [str(leaf["dtype"]) for leaf in members]
    return {
        "group": name,
        "arrays": len(members),
        "elements": sum(sizes),
        "bytes": sum(size * _BYTES.get(dtype, 1) for size, dtype in zip(sizes, types, strict=True)),
        "types": sorted(set(types)),
    }


def _not_default(config: Any) -> dict[str, Any]:
    """The settings that differ from configs/base.yml."""
    defaults = {
        name: list(setting.value) if isinstance(setting.value, tuple) else setting.value
        for name, setting in file_source(read_file(base_file()), "default").settings.items()
    }
    rules: Any = config.get(RULES, {})
    flat = {name: value for name, value in config.items() if name != RULES}
    flat |= {f"{RULES}.{axis}": axes for axis, axes in rules.items()}
    return {name: value for name, value in flat.items() if defaults.get(name) != value}


def _written(step: Path) -> str:
    moment = datetime.datetime.fromtimestamp(step.stat().st_mtime)
    return moment.isoformat(sep=" ", timespec="seconds")


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
