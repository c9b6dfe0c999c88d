"""A framework's recipe against the framework itself: run.py NAME [--folder FOLDER].

Makes an environment with the versions of `environments.toml`, unless --python names one. Checks
that the recorded flags are those of the parser, that the parser takes the arguments of every
configuration (a sample of thousands where there are more), and that wrong lines are refused. Then
runs `search(python, folder)` of `NAME_search.py`, a small real search on CPUs, where there is one.
"""

import argparse
import importlib
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from record_flags import recording

from evaluator.machine import local_environment
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import ask_parser
from records.study import Environment
from search.study.framework_study import framework_study
from search.study.spaces import completed, space_of
from search.study.study_file import builtin_study

HERE = Path(__file__).parent
TABLE = tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))
WRONG = HERE.parents[1] / "tests/evaluator/recipes/frameworks/wrong_lines"
EIGHT_GPUS = Environment(
    name="eight-gpus",
    device="cuda",
    accelerator="H100",
    world_size=8,
    ranks_per_node=8,
    memory_bytes=80 * 2**30,
)
SEEN = dict(os.environ)  # noqa: TID251 - a benchmark is started by hand


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=TABLE)
    parser.add_argument("--folder", type=Path, default=Path("build/frameworks"))
    parser.add_argument("--python", type=Path, help="use this environment as it is")
    parser.add_argument("--sample", type=int, default=2000, help="configurations to parse")
    given = parser.parse_args()
    folder = (given.folder / given.name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    python = given.python or make_environment(folder / "environment", **TABLE[given.name])
    checks = [check_flags(given.name, python)]
    if (baseline := HERE / f"{given.name}.sh").exists():
        checks.append(check_configurations(given.name, python, baseline, folder, given.sample))
    if (wrong := WRONG / f"{given.name}.toml").exists():
        checks.append(check_wrong_lines(given.name, python, wrong, folder))
    if (search := HERE / f"{given.name}_search.py").exists():
        checks.append(importlib.import_module(search.stem).search(python, folder))
    return 0 if all(checks) else 1


def make_environment(
    folder,
    *,
    packages,
    alone=(),
    alone_for=None,
    removed=(),
    python="python3.11",
    sitecustomize=None,
):
    """Make an environment from the package index, once, and return its Python."""
    made = folder / "bin/python"
    if (folder / "made").exists():
        return made
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(made), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *packages], check=True)
    (libraries,) = folder.glob("lib/python*/site-packages")
    if alone:
        other = ["--python-version", alone_for, "--only-binary=:all:", "--ignore-requires-python"]
        other = other if alone_for else []
        subprocess.run([*pip, "--no-deps", "--target", str(libraries), *other, *alone], check=True)
    if removed:
        subprocess.run([str(made), "-m", "pip", "uninstall", "--yes", *removed], check=True)
    if sitecustomize:
        (libraries / "sitecustomize.py").write_text(sitecustomize, encoding="utf-8")
    # Ranks that start without compiled modules would each compile them again.
    subprocess.run(["nice", str(made), "-m", "compileall", "-q", str(libraries)], check=False)
    (folder / "made").touch()
    return made


def check_flags(name, python):
    """The recording of the parser's flags must be what the parser has."""
    path, text = recording(name, python)
    same = path.exists() and path.read_text(encoding="utf-8") == text
    return _say(same, f"{path.name}: {text.count(chr(10)) - 2} flags, as the parser has them")


def check_configurations(name, python, baseline, folder, sample):
    """The parser must take the arguments of each configuration of the baseline's study."""
    recipe, study = _study(name, python, baseline, folder)
    space = space_of(study)
    found = space.feasible
    chosen = list(found) if len(found) <= sample else random.Random(0).sample(found, sample)
    knobs = {knob.upper() for knob in study.space.defaults}
    by_variables = defaultdict(list)
    for config in chosen:
        job = recipe.job(study, config)
        own = {n: v for n, v in job.environment.items() if n not in knobs}
        by_variables[tuple(sorted(own.items()))].append((config, job))
    refused = []
    started = time.perf_counter()
    for shared, jobs in by_variables.items():
        hook = f"hook_{name}.py"
        words = [[word for word in job.argv if word != hook] for _, job in jobs]
        lines = [LaunchLine.of(each, folder).arguments for each in words]
        answer = _ask(name, python, lines, folder, dict(shared))
        refused += [
            (config, parsed.error)
            for (config, _), parsed in zip(jobs, answer.parsed, strict=True)
            if parsed.error is not None
        ]
    for config, error in refused[:10]:
        print(f"  refused: {config}: {error}")
    took_s = time.perf_counter() - started
    return _say(
        not refused,
        f"{len(chosen) - len(refused)} of {len(chosen)} configurations (of {len(found)}) are taken "
        f"by the parser, in {took_s:.0f} s",
    )


def check_wrong_lines(name, python, path, folder):
    """Each wrong line must be refused before a launch; the parser is asked as well."""
    recipe, study = _study(name, python, HERE / f"{name}.sh", folder)
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    usual = table["usual"].split()
    lines = [[*usual, *each["line"].split()] for each in table["wrong"]]
    answer = _ask(name, python, lines, folder, table.get("environment", {}))
    good = True
    for each, parsed in zip(table["wrong"], answer.parsed, strict=True):
        work = {**table["work"], **each.get("work", {})}
        refusals = list(recipe.refusals(with_work(study, work), each["line"].split()))
        passes = parsed.error is None
        agreed = passes == each.get("passes", False)
        good &= bool(refusals) and agreed
        if not refusals or not agreed:
            print(f"  {each['line']}: we say {refusals}, the parser says {parsed.error}")
    passed = sum(parsed.error is None for parsed in answer.parsed)
    return _say(
        good,
        f"{len(lines)} wrong lines are refused before a launch; the parser lets {passed} of them "
        "pass, as recorded",
    )


def with_work(study, work):
    """A study with other sizes and another number of ranks."""
    sizes = dict(work)
    ranks = sizes.pop("world_size", study.environment.world_size)
    return replace(
        study,
        workload=replace(study.workload, **sizes),
        environment=replace(study.environment, world_size=ranks, ranks_per_node=ranks),
    )


def _study(name, python, baseline, folder):
    """The recipe of a baseline and its study on eight GPUs, completed."""
    script = folder / baseline.name
    text = baseline.read_text(encoding="utf-8").replace("torchrun", f"{python.parent}/torchrun")
    script.write_text(text.replace("\npython ", f"\n{python} "), encoding="utf-8")
    (folder / "pretrain_gpt.py").touch()
    (folder / "model").mkdir(exist_ok=True)
    shutil.copyfile(HERE / "model.json", folder / "model/config.json")
    base = replace(builtin_study(local_environment()), environment=EIGHT_GPUS)
    found = framework_study(name, script, (), base)
    return found.recipe, completed(found.study)


def _ask(name, python, lines, folder, variables):
    return ask_parser(
        name,
        python,
        lines,
        folder=folder,
        environment={**SEEN, **variables},
        world_size=EIGHT_GPUS.world_size,
        timeout_s=3600,
    )


def _say(good, text):
    print(f"{'ok' if good else 'NOT OK'}: {text}", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
