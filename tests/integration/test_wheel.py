import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run(*arguments, cwd, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Runs a module of the installed wheel far from the repository."""
    site = tmp_path_factory.mktemp("site")
    command = ["-m", "uv", "pip", "install", "--offline", "--no-deps", "--quiet"]
    run(*command, "--target", site, wheel, cwd=site)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    return lambda *arguments: run(*arguments, cwd=elsewhere, PYTHONPATH=str(site))


def test_the_wheel_holds_every_config_and_module(wheel) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    configs = {f"maxtext/{file.relative_to(ROOT)}" for file in (ROOT / "configs").rglob("*.yml")}
    modules = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src").rglob("*.py")}
    assert configs | modules == {name for name in names if name.endswith((".yml", ".py"))}


def test_the_installed_package_is_the_one_that_runs(installed) -> None:
    where = Path(installed("-c", "import maxtext; print(maxtext.__file__)").strip())
    assert ROOT not in where.parents


def test_help_and_config_work_where_there_is_no_repository(installed) -> None:
    assert "base_emb_dim" in installed("-m", "maxtext.train", "--help")
    resolved = installed("-m", "maxtext.train", "model_name=llama3.1-8b", "print_config=true")
    assert "128256" in resolved
    assert str(ROOT) not in resolved
