"""What a config will do: `python -m maxtext.plan [compare] [file.yml ...] key=value ...`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from maxtext.config.cli import Parser, exit_code, run_main, whole_stdout
from maxtext.config.load import Loaded

if TYPE_CHECKING:
    from maxtext.planning.answer import Plan


def main(argv: Sequence[str]) -> int:
    """Prints the plan that `argv` (without the program's name) asks for; returns the exit code.

    `--json` prints it as JSON, `--picture FILE.svg` draws the devices too.
    """
    parser = Parser(prog="python -m maxtext.plan", add_help=False, allow_abbrev=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", type=Path)
    options, rest = parser.parse_known_args(argv)
    runs = {"plan": rest}
    if rest[:1] == ["compare"]:
        files = [text for text in rest[1:] if text.endswith((".yml", ".yaml")) and "=" not in text]
        keys = [text for text in rest[1:] if text not in files]
        if len(set(files)) < 2 or options.picture:
            parser.error("compare takes two YAML files or more, then keys for all, and no picture")
        runs = {file: [file, *keys] for file in files}
    plans: dict[str, Plan] = {}
    for name, own in runs.items():

        def add(loaded: Loaded, name: str = name) -> None:
            # Imported here: jax takes seconds that help and errors need not wait for.
            from maxtext.planning.answer import make_plan

            plans[name] = make_plan(loaded.config)

        if code := run_main(own, add, program="maxtext.plan", shapes_only=True):
            return code
    # There are none after --help and print_config=true.
    if not plans:
        return 0
    return exit_code(lambda: _show(plans, options.json, options.picture), ValueError)


def _show(plans: "dict[str, Plan]", as_json: bool, picture: Path | None) -> None:
    from maxtext.planning.picture import write_picture
    from maxtext.planning.table import as_text

    if picture is not None:
        write_picture(next(iter(plans.values())), picture)
    with whole_stdout():
        print(as_text(plans, as_json=as_json), end="", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
