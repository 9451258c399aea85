"""What is installed: every package and data file, every library that is imported, and the source archive."""

import ast
import configparser
import re
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAPPED = {"gligabao.sql": ROOT / "sql", "gligabao.prompts": ROOT / "prompts"}
"""The packages that are folders at the top of the tree."""
BUILD = "from setuptools.build_meta import build_sdist; build_sdist('dist')"


@pytest.fixture(scope="module")
def config():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


def is_built(path):
    return "__pycache__" in path.parts


def test_every_package_is_listed(config):
    listed = set(config["options"]["packages"].split())
    found = {".".join(init.parent.relative_to(ROOT).parts) for init in (ROOT / "gligabao").rglob("__init__.py")}
    assert listed == found | MAPPED.keys()


def test_every_module_is_in_a_package(config):
    listed = set(config["options"]["packages"].split())
    modules = (ROOT / "gligabao").rglob("*.py")
    assert {".".join(module.parent.relative_to(ROOT).parts) for module in modules} <= listed


def test_every_data_file_is_listed(config):
    listed = set()
    for package, patterns in config["options.package_data"].items():
        folder = MAPPED.get(package, ROOT.joinpath(*package.split(".")))
        for pattern in re.split(r"[,\s]+", patterns.strip()):
            listed.update(path for path in folder.glob(pattern) if path.is_file())
    folders = [ROOT / "gligabao", *MAPPED.values()]
    found = {path for folder in folders for path in folder.rglob("*") if path.is_file() and not is_built(path)}
    assert listed == {path for path in found if path.suffix != ".py"}


# --- libraries


def imported_libraries(folder):
    """Return the top-level names that the modules in the folder import from outside, each with the modules."""
    found = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            else:
                continue
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(str(path.relative_to(ROOT)))
    return {name: users for name, users in found.items() if name not in {*sys.stdlib_module_names, "gligabao"}}


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements):
    """Return the names of the distributions that these lines ask for."""
    return {normalized(re.match(r"[\w.-]+", line)[0]) for line in requirements.split("\n") if line}


def test_every_imported_library_is_declared_and_no_other(config):
    distributions = packages_distributions()
    imported = imported_libraries(ROOT / "gligabao")
    needed = {normalized(name) for library in imported for name in distributions.get(library, [library])}
    assert needed == declared(config["options"]["install_requires"]), imported


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_the_lock_files_pin_every_declared_library_with_hashes_and_name_no_index(config, name):
    text = (ROOT / name).read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w.-]+)==\S+.* \\\n    --hash=sha256:", text, re.MULTILINE)
    assert declared(config["options"]["install_requires"]) <= set(map(normalized, pinned))
    assert "://" not in text and not re.search(r"^ *--(?!hash=)", text, re.MULTILINE)


# --- the source archive


def repository_files():
    """Return the names of the files in the repository, those not yet committed included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout.split("\0")
    return {name for name in names if name and (ROOT / name).is_file()}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is not a git repository")
def test_the_source_archive_has_every_file_of_the_repository(tmp_path):
    names = repository_files()
    # In a copy: setuptools packs what an earlier build in the same place found.
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    built = subprocess.run([sys.executable, "-c", BUILD], cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as tar:
        packed = {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}
    assert {name for name in packed if not name.startswith(("PKG-INFO", "gligabao.egg-info/"))} == names
