"""A config as one flat JSON object under the names that users type, and back."""

from collections.abc import Mapping

from pydantic import ValidationError

from maxtext.config.errors import ConfigError, Origin, Problem
from maxtext.config.keys import RULES, keys, sections
from maxtext.config.schema import Config
from maxtext.config.section import Section
from maxtext.config.sources import Setting, Source, unknown
from maxtext.config.values import Json, Refused, Value, choice_hint, parse_json, value_text


def flatten(config: Config) -> dict[str, Json]:
    """Every key with its value: text, numbers, flags, lists, and one mapping for the rules."""
    flat: dict[str, Json] = {}
    for section in sections():
        values: Section = getattr(config, section)
        flat |= values.model_dump(mode="json", by_alias=True)
    flat[RULES] = {axis: list(axes) for axis, axes in config.mesh.logical_axis_rules}
    return flat


def from_flat(flat: Mapping[str, Json]) -> Config:
    """The config that `flatten` made `flat` of.

    Raises:
        ConfigError: A key is missing, unknown or has a value that it does not take.
    """
    source = flat_source(flat, Origin("checkpoint", "stored config"))
    problems = list(source.problems)
    problems += [Problem(key, "is missing") for key in keys() if key not in flat]
    if problems:
        raise ConfigError(problems)
    config, problems = build(source.settings)
    if config is None:
        raise ConfigError(problems)
    return config


def flat_source(flat: Mapping[str, Json], origin: Origin) -> Source:
    """The settings of a flat config."""
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    for name, value in flat.items():
        try:
            for key, parsed in _parsed(name, value):
                settings[key] = Setting(key, parsed, value_text(parsed), origin)
        except KeyError:
            problems.append(unknown(name, value_text(value), origin))
        except Refused as refused:
            text = value_text(value)
            problems.append(Problem(name, refused.message, value=text, origin=origin))
    return Source(settings, tuple(problems))


def build(settings: Mapping[str, Setting]) -> tuple[Config | None, list[Problem]]:
    """The config of complete settings, or else what the schema refuses in them."""
    built: dict[str, Section] = {}
    problems: list[Problem] = []
    for name, kind in sections().items():
        values = {
            key.name: _rules(settings) if key.kind == "rules" else settings[key.name].value
            for key in keys().values()
            if key.section == name
        }
        try:
            built[name] = kind.model_validate(values)
        except ValidationError as error:
            wrong = {str(details["loc"][0]): None for details in error.errors()}
            problems += [_refused(settings[key]) for key in wrong]
    if problems:
        return None, problems
    return Config.model_validate(built), []


def _parsed(name: str, value: Json) -> list[tuple[str, Value]]:
    key = keys()[name]
    if key.kind != "rules":
        return [(name, parse_json(key, value))]
    if not isinstance(value, dict):
        raise Refused(f"must be {key.allowed}")
    names = keys()["mesh_axes"]
    return [(f"{RULES}.{axis}", parse_json(names, axes)) for axis, axes in value.items()]


def _rules(settings: Mapping[str, Setting]) -> tuple[tuple[str, Value], ...]:
    prefix = f"{RULES}."
    return tuple(
        (name.removeprefix(prefix), setting.value)
        for name, setting in settings.items()
        if name.startswith(prefix)
    )


def _refused(setting: Setting) -> Problem:
    key = keys()[setting.name]
    return Problem(
        setting.name,
        f"must be {key.allowed}",
        value=setting.text,
        origin=setting.origin,
        hint=choice_hint(key, setting.value),
    )
