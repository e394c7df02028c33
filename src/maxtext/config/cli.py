"""What every entry point does with its command line: help, errors, the config in print, the run."""

import argparse
import contextlib
import dataclasses
import io
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import NoReturn

from maxtext.config.errors import ConfigError, Origin, Problem, did_you_mean
from maxtext.config.keys import RULES, Key, keys, sections
from maxtext.config.load import Loaded, load
from maxtext.config.sources import file_source
from maxtext.config.values import value_text
from maxtext.config.yaml_files import base_file, read_file

_USAGE = """\
usage: python -m {program} [FILE.yml] [KEY=VALUE | --KEY VALUE] ...

From the weakest to the strongest: configs/base.yml, the file of model_name, FILE.yml, the command
line, the environment (M_KEY=VALUE). print_config=true shows the outcome, --help WORD the keys that
have to do with a word.
"""
_BAD_INPUT = 2
_INTERRUPTED = 130
_VALUE_WIDTH = 28


class Parser(argparse.ArgumentParser):
    """argparse's, whose errors are one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        self.exit(_BAD_INPUT, f"error: {message}; see {self.prog} --help\n")


def exit_code(run: Callable[[], int | None], *errors: type[ValueError]) -> int:
    """The exit code of a program that does `run`.

    What it returns; 2 with all problems on stderr where it raises ConfigError or one of `errors`;
    130 after Ctrl-C. All else passes through.
    """
    for stream in (sys.stdout, sys.stderr):
        # Not every terminal can show every character.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return run() or 0
    except ConfigError as error:
        sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
        return _BAD_INPUT
    except errors as error:
        sys.stderr.write(f"error: {error}\n")
        return _BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return _INTERRUPTED


def run_main(
    argv: Sequence[str],
    run: Callable[[Loaded], None],
    *,
    program: str,
    model_from_checkpoint: bool = False,
    shapes_only: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """The exit code of a program that does `run` with the config of its command line.

    0 after the run, `--help` and `print_config=true`; else as `exit_code`.

    Args:
        argv: Without the program's name.
        run: Imports what it needs itself, so that help and errors come without waiting for it.
        program: How messages call it, `maxtext.train`.
        model_from_checkpoint: As for `load`.
        shapes_only: As for `load`.
    """

    def whole() -> None:
        word = _help_word(argv)
        if word is not None:
            _print(_USAGE.format(program=program) + help_text(word))
            return
        loaded = load(
            argv,
            environ,
            model_from_checkpoint=model_from_checkpoint,
            shapes_only=shapes_only,
        )
        if loaded.config.run.print_config:
            _print(config_text(loaded))
            return
        try:
            run(loaded)
        except ConfigError as error:
            raise _with_origins(error, loaded.origins) from error

    return exit_code(whole)


def help_text(word: str) -> str:
    """The keys that have to do with `word`, grouped by section; all for an empty word.

    Raises:
        ConfigError: There is none.
    """
    defaults = file_source(read_file(base_file()), "default").settings
    parts: list[str] = []
    for name, kind in sections().items():
        found = [
            key for key in keys().values() if key.section == name and _matches(key, word.casefold())
        ]
        if found:
            doc = (kind.__doc__ or "").splitlines()[0]
            parts.append(f"\n{name}: {doc}\n")
        for key in found:
            default = "see configs/base.yml" if key.name == RULES else defaults[key.name].value
            parts.append(_key_help(key, value_text(default)))
    if not parts:
        hint = did_you_mean(word, [*keys(), *sections()])
        raise ConfigError([Problem("--help", "no key has to do with it", value=word, hint=hint)])
    return "".join(parts)


def config_text(loaded: Loaded) -> str:
    """Each value and where it came from, a line each."""
    rows: list[tuple[str, str, str]] = []
    for key in keys().values():
        value = getattr(getattr(loaded.config, key.section), key.field)
        if key.name == RULES:
            for axis, axes in loaded.config.mesh.logical_axis_rules:
                name = f"{RULES}.{axis}"
                rows.append((name, value_text(axes), str(loaded.origins[name])))
        else:
            rows.append((key.name, value_text(value), str(loaded.origins[key.name])))
    first = max(len(name) for name, _, _ in rows)
    second = min(_VALUE_WIDTH, max(len(value) for _, value, _ in rows))
    return "".join(
        f"{name:<{first}}  {value:<{second}}  {origin}\n" for name, value, origin in rows
    )


def _key_help(key: Key, default: str) -> str:
    lines = textwrap.wrap(key.doc, 92, initial_indent="      ", subsequent_indent="      ")
    return "\n".join([f"  {key.name}={default}    ({key.allowed})", *lines, ""])


def _matches(key: Key, word: str) -> bool:
    searched = (key.name, key.section, key.doc, *key.choices)
    return any(word in text.casefold() for text in searched)


def _help_word(argv: Sequence[str]) -> str | None:
    """The word after `--help`, empty where there is none; None where help is not asked for."""
    for index, argument in enumerate(argv):
        if argument in ("--help", "-h"):
            after = argv[index + 1] if index + 1 < len(argv) else ""
            return after.lstrip("-").split("=")[0]
        if argument.startswith("--help="):
            return argument.removeprefix("--help=")
    return None


def _with_origins(error: ConfigError, origins: Mapping[str, Origin]) -> ConfigError:
    """All problems, with the origin of those that were found where it is not known."""
    return ConfigError(
        dataclasses.replace(problem, origin=problem.origin or origins.get(problem.key))
        for problem in error.problems
    )


def _print(text: str) -> None:
    with whole_stdout():
        sys.stdout.write(text)
        sys.stdout.flush()


def print_note(text: str | None) -> None:
    """Prints a line beside the answers of a program: to stderr."""
    if text is not None:
        sys.stderr.write(f"{text}\n")


def print_pieces(pieces: Iterator[str]) -> None:
    """Prints pieces of text as they come; errors before the first one pass through."""
    first = next(pieces)
    with whole_stdout():
        for piece in itertools.chain((first,), pieces):
            sys.stdout.write(piece)
            sys.stdout.flush()


@contextlib.contextmanager
def whole_stdout() -> Generator[None]:
    """Ends the program where stdout, all that the block is for, can be written no more.

    Raises:
        SystemExit: With 1 and the reason; with 0 for a reader that left early, such as `head`.
    """
    try:
        yield
    except OSError as error:
        abandon_stdout(error)
        raise SystemExit(0 if isinstance(error, BrokenPipeError) else 1) from error


def abandon_stdout(error: OSError) -> None:
    """Sends to nowhere what would go to a stdout that failed, and says why it failed.

    Nothing is said of a reader that left early.
    """
    if not isinstance(error, BrokenPipeError):
        sys.stderr.write(f"error: stdout cannot be written: {error.strerror}\n")
    # Python flushes once more at exit: it must not meet the failed file.
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
