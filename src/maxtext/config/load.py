"""All sources to one frozen config, with every problem reported at once."""

import dataclasses
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path

from maxtext.config import architecture, derive, derive_attention_dp, filesystem, outputs
from maxtext.config.errors import Clash, ConfigError, Origin, Problem, did_you_mean, nearest
from maxtext.config.flat import build
from maxtext.config.keys import BASE_CONFIG, RULES, keys
from maxtext.config.schema import Config
from maxtext.config.sources import (
    COMMAND_LINE,
    Setting,
    Source,
    arguments,
    command_line_source,
    environment_source,
    file_source,
)
from maxtext.config.trained import MODEL, find_model, model_source, step_folder
from maxtext.config.yaml_files import (
    YamlFile,
    base_file,
    chain,
    config_folder,
    find_file,
    read_file,
)

_MESH = "custom_mesh_and_rule"
_NOT_IN_MODEL_FILES = "run"
# A problem of one of these means that a whole file is missing: what depends on it is not checked.
_WHOLE_FILES = ("", BASE_CONFIG, "model_name", _MESH)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A resolved config and where each value came from.

    Attributes:
        config: What the program runs with.
        origins: For each key, and for each single rule under `logical_axis_rules.<axis>`.
    """

    config: Config
    origins: Mapping[str, Origin]


def load(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    model_from_checkpoint: bool = False,
    shapes_only: bool = False,
) -> Loaded:
    """Reads `argv` (without the program's name) and the variables `M_KEY` of `environ`.

    From the weakest to the strongest: `configs/base.yml`, the file of `custom_mesh_and_rule`, the
    file of `model_name`, the user's YAML file with its `base_config` chain, the command line, the
    environment. What the user sets may contradict the model's file only with
    `override_model_config=true`.

    Where weights are loaded, the model and its tokenizer are what is stored with them, and a model
    file is held to it like a user's setting.

    Args:
        argv: `[file.yml] key=value ...`.
        environ: As `os.environ`.
        model_from_checkpoint: For programs that use a trained model, that of
            `load_parameters_path` or of the run. Nothing that only training reads or writes is
            checked.
        shapes_only: For programs that neither train nor have weights: there need be no files, and
            no model but the one that the config describes.

    Raises:
        ConfigError: All that is wrong.
    """
    base = file_source(read_file(base_file()), "default")
    files, user = _user_source(argv, environ)
    weak = user.over(base)
    model = _attempt(lambda: _model_file(weak.settings, files))
    training = not (model_from_checkpoint or shapes_only)
    if folder := _trained(weak.settings, training=training):
        user = user.over(model)
        model = _attempt(lambda: model_source(folder, training=training))
    mesh = _attempt(lambda: _mesh_file(weak.settings, files))
    defaults = _with_mesh(base, mesh)
    merged = user.over(model).over(defaults)
    problems = [*merged.problems, *_unknown_rules(merged, base)]
    complete = all(problem.key not in _WHOLE_FILES for problem in problems)
    if complete and weak.settings["override_model_config"].value is False:
        problems += _contradictions(user, model, training=training)
    return _checked(merged, defaults, problems, training=training, files=not shapes_only)


def _checked(
    merged: Source, defaults: Source, problems: list[Problem], *, training: bool, files: bool
) -> Loaded:
    config, refused = build(merged.settings)
    problems += refused
    if config is None:
        # The rest is checked with the default in the place of what is refused.
        instead = {problem.key: defaults.settings[problem.key] for problem in refused}
        config, _ = build({**merged.settings, **instead})
        assert config is not None, "configs/base.yml is not valid"
    if not any(problem.key in _WHOLE_FILES for problem in problems):
        user_keys = {name for name, one in merged.settings.items() if one.origin.by_user}
        clashes = [
            *architecture.clashes(config, user_keys),
            *_derived(config, user_keys, training=training, either=not files),
            *(outputs.clashes(config, user_keys) if training else ()),
            *(
                filesystem.clashes(config, user_keys, training=training)
                if files
                else filesystem.checkpoint_clashes(config.checkpoint)
            ),
        ]
        problems += _clash_problems(clashes, merged.settings, problems)
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return Loaded(config, types.MappingProxyType(_origins(merged.settings)))


def _derived(config: Config, user_keys: Set[str], *, training: bool, either: bool) -> list[Clash]:
    """What is wrong for training or else for serving; with `either` it may be right for one."""
    found = [
        *derive.clashes(config, user_keys, training=training),
        *derive_attention_dp.clashes(config, user_keys, training=training),
    ]
    if either and not _derived(config, user_keys, training=not training, either=False):
        return []
    return found


def _user_source(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[YamlFile, ...], Source]:
    """The user's files, the nearest first, and all that the user sets in them and elsewhere."""
    given = arguments(argv)
    line, environment = command_line_source(given), environment_source(environ)
    files: tuple[YamlFile, ...] = ()
    user = Source()
    if given.config_file is not None:
        try:
            found = find_file(given.config_file, folder=Path(), origin=COMMAND_LINE)
            files = _above_base(found)
        except ConfigError as error:
            user = Source(problems=error.problems)
    for file in reversed(files):
        user = file_source(file, "file").over(user)
    user = environment.over(line.over(user))
    return files, Source(user.settings, user.problems + _given_twice(line, environment))


def _above_base(path: Path) -> tuple[YamlFile, ...]:
    """The chain that starts with `path`, without the bundled base.yml that every chain ends in."""
    return tuple(file for file in chain(path) if not file.path.samefile(base_file()))


def _given_twice(line: Source, environment: Source) -> tuple[Problem, ...]:
    return tuple(
        Problem(
            name,
            "is given on the command line and in the environment; keep one",
            value=setting.text,
            beside=(str(environment.settings[name]),),
        )
        for name, setting in line.settings.items()
        if name in environment.settings
    )


def _attempt(read: Callable[[], Source]) -> Source:
    """What `read` returns, or a source that only has its problems."""
    try:
        return read()
    except ConfigError as error:
        return Source(problems=error.problems)


def _model_file(settings: Mapping[str, Setting], files: tuple[YamlFile, ...]) -> Source:
    setting = settings["model_name"]
    name = setting.text
    if name == "default":
        return Source()
    if name.endswith((".yml", ".yaml")):
        path = find_file(
            name, folder=_folder(setting, files), origin=setting.origin, key="model_name"
        )
    else:
        path = config_folder() / "models" / f"{name}.yml"
    if not os.path.isfile(path):
        models = sorted(file.stem for file in (config_folder() / "models").glob("*.yml"))
        hint = did_you_mean(name, models) or f"there are {', '.join(models)}, or a path to a .yml"
        message = "is no file of configs/models"
        problem = Problem("model_name", message, value=name, origin=setting.origin, hint=hint)
        raise ConfigError([problem])
    found = Source()
    for file in reversed(_above_base(path)):
        found = file_source(file, "model").over(found)
    return Source(found.settings, found.problems + _misplaced(found))


def _misplaced(model: Source) -> tuple[Problem, ...]:
    return tuple(
        Problem(
            name,
            "does not belong into a model's file, which says what the model is",
            value=setting.text,
            origin=setting.origin,
        )
        for name, setting in model.settings.items()
        if name in keys() and (keys()[name].section == _NOT_IN_MODEL_FILES or name == _MESH)
    )


def _trained(settings: Mapping[str, Setting], *, training: bool) -> Path | None:
    """Where a trained model lies; what is none is reported by later checks."""
    path, run = settings["load_parameters_path"].text, settings["run_name"].text
    if path:
        return find_model(path)
    if training:
        path = settings["load_full_state_path"].text
    elif run:
        path = os.path.join(settings["base_output_directory"].text, run)
    return step_folder(path) if path else None


def _mesh_file(settings: Mapping[str, Setting], files: tuple[YamlFile, ...]) -> Source:
    setting = settings[_MESH]
    if not setting.text:
        return Source()
    folder = _folder(setting, files)
    file = read_file(find_file(setting.text, folder=folder, origin=setting.origin, key=_MESH))
    wanted = {"mesh_axes", RULES}
    names = {entry.name for entry in file.entries}
    if names != wanted:
        extra = ", ".join(sorted(names ^ wanted))
        message = f"must hold mesh_axes and {RULES}, no more and no less: see {extra}"
        raise ConfigError([Problem("", message, origin=Origin("file", file.name))])
    source = file_source(file, "file")
    rules = {name.removeprefix(f"{RULES}.") for name in source.settings if name.startswith(RULES)}
    base = file_source(read_file(base_file()), "default").settings
    known = [name.removeprefix(f"{RULES}.") for name in base if name.startswith(RULES)]
    missing = [axis for axis in known if axis not in rules]
    if not missing or source.problems:
        return source
    message = f"has no rule for {', '.join(missing)}"
    origin = Origin("file", file.name)
    hint = f"`{missing[0]}: []` says replicated"
    return Source(source.settings, (Problem(RULES, message, origin=origin, hint=hint),))


def _with_mesh(base: Source, mesh: Source) -> Source:
    """The defaults with the mesh and the rules of `mesh` in the place of all their own."""
    if not mesh.settings:
        return Source(base.settings, base.problems + mesh.problems)
    kept = {name: one for name, one in base.settings.items() if not name.startswith(f"{RULES}.")}
    return mesh.over(Source(kept, base.problems))


def _folder(setting: Setting, files: tuple[YamlFile, ...]) -> Path:
    """What a config file's name is relative to: the file that it stands in, or here."""
    if setting.origin.level == "file":
        return next(file.path.parent for file in files if file.entry(setting.name))
    return Path()


def _unknown_rules(merged: Source, base: Source) -> Iterable[Problem]:
    prefix = f"{RULES}."
    known = [name.removeprefix(prefix) for name in base.settings if name.startswith(prefix)]
    for name, setting in merged.settings.items():
        if name.startswith(prefix) and name not in base.settings:
            axis = name.removeprefix(prefix)
            hint = did_you_mean(axis, known) or f"there are {', '.join(known)}"
            message = "there is no such logical axis"
            yield Problem(name, message, value=setting.text, origin=setting.origin, hint=hint)


def _contradictions(user: Source, model: Source, *, training: bool) -> Iterable[Problem]:
    for name, given in user.settings.items():
        theirs = model.settings.get(name)
        # A run may go on with another tokenizer than the one that the weights came with.
        free = training and theirs is not None and _is_of_checkpoint(theirs)
        if theirs is not None and theirs.value != given.value and not free:
            yield Problem(
                name,
                f"contradicts {theirs.text} of {theirs.origin}",
                value=given.text,
                origin=given.origin,
                hint="leave it out, or add override_model_config=true",
            )


def _is_of_checkpoint(setting: Setting) -> bool:
    return setting.origin.level == "checkpoint" and keys()[setting.name].section != MODEL


def _clash_problems(
    clashes: Iterable[Clash], settings: Mapping[str, Setting], problems: Iterable[Problem]
) -> Iterable[Problem]:
    """A problem for each clash that does not follow from another problem."""
    broken = {problem.key for problem in problems}
    broken |= {nearest(name, keys()) or name for name in broken}
    for clash in clashes:
        if broken.isdisjoint(clash.keys):
            found = [settings[name] for name in clash.keys]
            subject = next((one for one in found if one.origin.by_user), found[0])
            yield Problem(
                subject.name,
                clash.message,
                value=subject.text,
                origin=subject.origin,
                hint=clash.hint,
                beside=tuple(str(one) for one in found if one is not subject),
            )


def _origins(settings: Mapping[str, Setting]) -> dict[str, Origin]:
    origins = {name: setting.origin for name, setting in settings.items()}
    strength = ("default", "model", "checkpoint", "file", "command line", "environment")
    rules = [origin for name, origin in origins.items() if name.startswith(f"{RULES}.")]
    return origins | {RULES: max(rules, key=lambda origin: strength.index(origin.level))}
