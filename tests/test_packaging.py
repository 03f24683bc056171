"""What is installed from a wheel, far from any checkout, has its recipes with it and measures and draws."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "probes", "analyses", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what a wheel is built from, with the litter that a used checkout has."""
    root = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)
    for place in ("probes", "analyses", "src/compolens", "src/compolens/tasks"):
        (root / place / "__pycache__").mkdir(exist_ok=True)
        (root / place / "__pycache__" / "litter.cpython-311.pyc").write_bytes(b"")
    return root


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    before = sorted(checkout.rglob("*"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(build, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(checkout.rglob("*")) == before
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Run Python in an empty folder, with the unpacked wheel as the only compolens."""
    site, elsewhere = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("elsewhere")
    zipfile.ZipFile(wheel).extractall(site)

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(site)}
        done = subprocess.run(
            [sys.executable, *map(str, arguments)], cwd=elsewhere, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done

    run.site, run.cwd = site, elsewhere
    return run


def test_a_wheel_holds_every_module_and_every_recipe_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}
    source = ROOT / "src"
    expected = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    for kind in ("probes", "analyses"):
        expected |= {f"compolens/rooms/{kind}/{p.name}" for p in (ROOT / kind).glob("*.py")}
    assert names == expected


def test_a_wheel_declares_the_command(wheel):
    archive = zipfile.ZipFile(wheel)
    (entry,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    assert "compolens = compolens.cli:main" in archive.read(entry).decode()


def test_the_installed_package_is_the_unpacked_one_and_lists_its_own_recipes(installed):
    script = (
        "import compolens; from compolens.recipes import room; print(compolens.__file__, room('probes'), room('analyses'))"
    )
    package = installed.site / "compolens"
    places = [package / "__init__.py", package / "rooms" / "probes", package / "rooms" / "analyses"]
    assert installed("-c", script).stdout.split() == [str(p) for p in places]
    for command, kind in (("probe", "probes"), ("analyze", "analyses")):
        lines = installed("-m", "compolens.cli", command, "--list").stdout.splitlines()[2:]
        assert [line.split()[0] for line in lines] == sorted(p.stem for p in (ROOT / kind).glob("*.py"))


def test_the_installed_package_measures_and_draws(installed, tiny_models):
    shutil.copytree(tiny_models["hypernetwork"], installed.cwd / "runs" / "hypernetwork")
    installed("-m", "compolens", "probe", "patching", "runs", "--episodes", 8)
    installed("-m", "compolens.cli", "analyze", "where_the_task_is_decided", "runs")
    assert (installed.cwd / "runs" / "hypernetwork" / "tables" / "patching.csv").stat().st_size > 1000
    drawn = {p.suffix for p in (installed.cwd / "figures").glob("where_the_task_is_decided.*")}
    assert drawn == {".pdf", ".png", ".csv", ".json"}
