"""Serves a model over HTTP as OpenAI does: `python -m maxtext.serve [file.yml] key=value ...`."""

import functools
import importlib.util
import sys
from collections.abc import Sequence

from maxtext.config.cli import run_main
from maxtext.config.errors import ConfigError
from maxtext.config.load import Loaded

_NEEDED = ("starlette", "uvicorn", "prometheus_client")


def main(argv: Sequence[str]) -> int:
    """Serves as `argv` (without the program's name) says; returns the exit code."""
    return run_main(argv, _serve, program="maxtext.serve", model_from_checkpoint=True)


def _serve(loaded: Loaded) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"serving needs {', '.join(missing)}: pip install {' '.join(missing)}")
    from maxtext.serving.port import bound

    with bound(loaded.config.serve) as listener:
        # Imported here: jax takes seconds that help and errors need not wait for.
        from maxtext.serving.server import serve

        serve(loaded.config, listener, functools.partial(print, flush=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
