"""What README.md and docs/ say: commands, keys, paths and links."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from maxtext import plan
from maxtext.config.cli import run_main
from maxtext.config.flat import flatten
from maxtext.config.keys import keys
from maxtext.config.load import Loaded
from maxtext.config.trained import find_model, model_source, read_model
from maxtext.conversion.byte_tokenizer import write_byte_tokenizer
from maxtext.conversion.side_files import write_config

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
TOP_FOLDERS = ("src", "configs", "docs", "tests", "benchmarks", "data")

# Bash that puts down what `python` is called with, an empty word after each call. All else that a
# page asks for is done, so that the files are there which the calls name.
RECORD = """
make() { :; }
source() { :; }
head() { :; }
curl() { :; }
kill() { :; }
vllm() { :; }
python() { printf '%s\\0' "$@" '' >> recorded; }
"""
# The quickstart trains for minutes; what comes after it needs a checkpoint, not a good one.
SHORT = """
make() {
  if [ "$1" = quickstart ]; then
    python -m maxtext.train configs/quickstart.yml steps=2 eval_interval=-1
  fi
}
"""


def script(page: Path) -> str:
    """The blocks of a page that are marked as bash, in order."""
    return "".join(body for mark, body in FENCE.findall(page.read_text()) if mark == "bash")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Where links into a page may lead: its headings, as code hosts spell them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a checkout after `make quickstart`."""
    for name in ("configs", "data", "docs", "README.md", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    assert call("maxtext.train", "configs/quickstart.yml") == 0
    return tmp_path


def call(program: str, *argv: str) -> int:
    """What `python -m program` returns before it would run, and leaves the checkpoint it would."""
    if program == "maxtext.convert":
        leave_converted(*argv)
        return 0
    if program == "maxtext.plan":
        return plan.main(argv)
    decodes = program in ("maxtext.decode", "maxtext.serve", "maxtext.vllm_decode")
    assert decodes or program == "maxtext.train", program

    def run(loaded: Loaded) -> None:
        config = loaded.config
        if not decodes and config.checkpoint.enable_checkpointing:
            runs = Path(config.run.base_output_directory)
            step = runs / config.run.run_name / "checkpoints" / str(config.training.steps)
            (step / "config").mkdir(parents=True, exist_ok=True)
            (step / "config" / "metadata").write_text(json.dumps(flatten(config)))

    return run_main(argv, run, program=program, model_from_checkpoint=decodes, environ={})


def leave_converted(verb: str, source: str, out: str) -> None:
    """Leaves what a conversion writes beside the weights."""
    found = find_model(source)
    assert found is not None, source
    model = read_model(model_source(found))
    assert not Path(out).exists(), out
    if verb == "to_hf":
        Path(out).mkdir()
        write_byte_tokenizer(Path(out), add_bos=True)
        write_config(Path(out), model, dtypes={"float32"})
    else:
        assert verb == "from_hf"
        (Path(out) / "0" / "config").mkdir(parents=True)
        flat = model.model_dump(mode="json", by_alias=True) | {"tokenizer_type": "byte"}
        (Path(out) / "0" / "config" / "metadata").write_text(json.dumps(flat))


def recorded(folder: Path) -> list[list[str]]:
    words = (folder / "recorded").read_text().split("\0")
    calls: list[list[str]] = [[]]
    for word in words[:-1]:
        if word:
            calls[-1].append(word)
        else:
            calls.append([])
    return calls[:-1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_marked_as_commands_or_as_text(page: Path) -> None:
    assert {mark for mark, _ in FENCE.findall(page.read_text())} <= {"bash", "text"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if script(page)], ids=lambda page: page.name
)
def test_every_command_makes_a_valid_config(page: Path, checkout: Path, capsys) -> None:
    subprocess.run(
        ["bash", "-c", RECORD + script(page) + "\nwait"], cwd=checkout, timeout=60, check=True
    )
    calls = recorded(checkout)
    assert script(page).count("python -m ") == len(calls)
    for flag, program, *argv in calls:
        assert flag == "-m"
        code = call(program, *argv)
        assert code == 0, f"{argv}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_and_key_that_is_named_exists(page: Path) -> None:
    for code in CODE.findall(prose(page)):
        path = code.split()[0].strip("'\"")
        if path.split("/")[0] in TOP_FOLDERS and "/" in path and "<" not in path:
            assert list(ROOT.glob(path)), code
        # After the program or alone: a setting. What spells its variables in capitals is no key.
        for key in re.findall(r"(?:^|\s)([a-z][a-z0-9_]*)=", code):
            assert key in keys(), code


def test_the_page_for_developers_names_all_there_is() -> None:
    words = set(re.split(r"[`\s/]+", (ROOT / "docs" / "development.md").read_text()))
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    packages = [path.parent.name for path in (ROOT / "src" / "maxtext").glob("*/__init__.py")]
    folders = [path.name for path in (ROOT / "tests").iterdir() if path.is_dir()]
    names = {*extras, *targets, *packages, *folders} - {"__pycache__"}
    assert names - words == set()


@pytest.mark.slow
def test_the_readme_can_be_pasted_into_a_fresh_checkout(tmp_path: Path) -> None:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    for name in filter(None, names.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f"PATH={Path(sys.executable).parent}:$PATH\n")
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f". {activate}\n{SHORT}{script(README)}"],
        cwd=tmp_path,
        env=environ | {"PYTHONPATH": str(tmp_path / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout
    assert "error" not in done.stdout.lower(), done.stdout
