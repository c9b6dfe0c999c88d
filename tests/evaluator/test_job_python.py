"""The Python of the ranks: what it has, what is said where it lacks something, what it runs."""

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest

from evaluator import job_python
from evaluator.failures.classify import classify
from evaluator.job_python import ask_python, check_torch, own_python, torch_release
from evaluator.launchers.local import LocalLauncher
from evaluator.rank import start
from evaluator.recipes.builtin import BuiltinRecipe
from records.errors import EnvironmentFault
from records.trial import Config

TREE = Path(__file__).parents[2]
OF_AGENTS = ("connection", "limits", "supervisor", "watch", "cluster/agent", "cluster/channel")
OF_RANKS = [
    TREE / "cclsearch.py",
    *sorted(TREE.glob("evaluator/rank/*.py")),
    *sorted(TREE.glob("evaluator/workloads/**/*.py")),
    *(TREE / f"evaluator/launchers/{name}.py" for name in OF_AGENTS),
]


@pytest.fixture
def python(tmp_path):
    """Makes a program in the place of a Python."""

    def make(script: str) -> str:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
        return str(program)

    return make


def with_packages(**packages: str) -> str:
    found = {"python": "CPython 3.10.4", "packages": packages, "torch_facts": {}}
    return f"echo '{json.dumps(found)}'"


def test_another_python_says_what_is_installed_there():
    asked, own = ask_python(sys.executable), own_python()

    assert replace(asked, packages={}) == replace(own, packages={})
    # What runs tests may have brought more, which setuptools keeps for itself.
    assert asked.packages.items() <= own.packages.items()


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (with_packages(), "(CPython 3.10.4) has no torch; ranks need torch 2.6 or later"),
        (with_packages(torch="2.5.1+cu121"), "has torch 2.5.1+cu121; ranks need torch 2.6"),
        ("echo no such option >&2; exit 2", "cannot be asked what is installed: no such option"),
        ("echo hello", "cannot be asked what is installed: "),
    ],
)
def test_a_python_that_cannot_run_ranks_is_refused_in_one_line(python, script, fault):
    path = python(script)

    with pytest.raises(EnvironmentFault) as refused:
        check_torch(path)

    assert str(refused.value).startswith(path)
    assert fault in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_python_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EnvironmentFault, match=r"nowhere cannot be asked .*: No such file or dir"):
        check_torch(f"{tmp_path}/nowhere")


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0+cpu", "2.9.0a0+ecf3bae40a.nv25.09"])
def test_ranks_run_on_torch_from_2_6_on(python, version):
    path = python(with_packages(torch=version))

    check_torch(path)

    assert torch_release(path) == tuple(map(int, version.split(".")[:2]))


def test_without_torch_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(job_python, "torch_version", lambda _: None)

    with pytest.raises(
        EnvironmentFault, match=r'pip install "cclsearch\[builtin\]", or set python'
    ):
        check_torch(None)


@pytest.mark.parametrize("path", OF_RANKS, ids=lambda path: str(path.relative_to(TREE)))
def test_what_ranks_and_agents_import_is_written_for_python_3_10(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


def test_a_module_of_the_ranks_runs_in_a_python_that_has_no_cclsearch_and_no_packages(tmp_path):
    command = start.command("evaluator.rank.software", sys.executable, options=("-S",))

    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert json.loads(printed.stdout)["packages"] == {}


def test_ranks_need_torch_and_what_torch_needs_and_nothing_else(
    python, study, tmp_path, launch_environment
):
    folder = tmp_path / "packages"
    folder.mkdir()
    for each in ("torch", "torchgen", "functorch", "mpmath", "markupsafe", *_needs_of_torch()):
        origin = Path(find_spec(each).origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (folder / source.name).symlink_to(source)
    alone = python(f'PYTHONPATH={folder} exec {sys.executable} -S "$@"')
    launch = replace(study.launch, python=alone)
    job = BuiltinRecipe().job(replace(study, launch=launch), Config({"dp_replicate": 2}))
    launcher, work = LocalLauncher(launch_environment, threads_per_rank=1), tmp_path / "work"
    work.mkdir()

    try:
        result = launcher.run(job, work, lambda _: None)
    finally:
        launcher.close()

    assert classify(result) is None
    assert "numpy" not in {path.name for path in folder.iterdir()}


def _needs_of_torch() -> list[str]:
    """The modules of what torch needs, as far as it is installed."""
    needs = [re.match(r"[\w-]+", need)[0] for need in requires("torch") if "extra" not in need]
    modules = [name.replace("-", "_").lower() for name in needs]
    return [name for name in modules if find_spec(name) is not None]
