"""The documents say what the program does: commands, examples, study files, words."""

import ast
import json
import re
import shlex
import subprocess
import textwrap
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml

import cclsearch
from evaluator.recipes.catalog import FRAMEWORKS
from evaluator.recipes.frameworks.flags import Flags, recorded_versions
from records.study import EarlierBest, Environment, Origin, Prior, Study
from search.cli import main as cli
from search.cli.main import loaded
from search.study.study_file import builtin_study, read_study_file

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
PAGES = {"README.md": README, **DOCS}
STUDY_PAGE = DOCS["study.md"]
MACHINE = Environment(name="bench", device="cpu", accelerator="cpu", world_size=4, ranks_per_node=4)
SET_BY_US = {
    *(f"EarlierBest.{field.name}" for field in fields(EarlierBest)),
    "Environment.software",
    "SearchSpace.dimensions",
    "SearchSpace.constraints",
    "Study.earlier",
    "Study.more_objectives",
    "Study.origin",
    *(f"Origin.{field.name}" for field in fields(Origin)),
    "Study.inferences",
    "Study.prior",
    *(f"Prior.{field.name}" for field in fields(Prior)),
    "Study.replay_of",
    "Study.revoked",
}
"""Found out, spelled as `[space.NAME]`, `[[constraint]]` and `more`, or given by an option."""


FRAMEWORK_FLAGS = {
    flag
    for name in FRAMEWORKS
    for version in recorded_versions(name)
    for flag in Flags.of(name, version)[0].flags
}


def commands(named, prefix=()):
    for name, command in named.items():
        if hasattr(command, "commands"):
            yield from commands(command.commands, (*prefix, name))
        else:
            yield " ".join((*prefix, name)), command


COMMANDS = dict(commands({name: loaded(name) for name in cli.COMMANDS}))
EXAMPLES = sorted(
    {
        line.strip()
        for command in COMMANDS.values()
        for line in (command.epilog or "").replace("\\\n", "").splitlines()
        if line.strip().startswith("cclsearch ")
    }
)


def blocks(text, language=""):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [body for name, body in found if name == language]


def described(kind, seen=None):
    """Every field of a dataclass and of the dataclasses in it, as `Class.field`."""
    seen = {} if seen is None else seen
    if is_dataclass(kind) and kind.__name__ not in seen:
        hints = get_type_hints(kind)
        seen[kind.__name__] = [f"{kind.__name__}.{field.name}" for field in fields(kind)]
        for hint in hints.values():
            for part in (hint, *get_args(hint)):
                described(part, seen)
    return [name for names in seen.values() for name in names]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_has_help_and_an_example_and_is_in_a_document(words):
    command = COMMANDS[words]

    assert command.help
    assert words == "version" or f"cclsearch {words}" in command.epilog
    names = words.split()
    mentioned = README + "".join(DOCS.values())
    assert words == "version" or all(re.search(rf"\b{name}\b", mentioned) for name in names)


@pytest.mark.parametrize("words", COMMANDS)
def test_an_option_has_help(words):
    options = [p for p in COMMANDS[words].params if p.name != "help"]

    assert [option.name for option in options if not getattr(option, "help", None)] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_in_a_help_text_is_a_valid_command(example):
    words = shlex.split(example, comments=True)[1:]
    names = [" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in COMMANDS]
    name = names[0]

    with COMMANDS[name].make_context(name, words[len(name.split()) :]) as context:
        assert context.params


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_names_only_commands_and_options_that_exist(page):
    text = PAGES[page]
    known = {option for command in COMMANDS.values() for p in command.params for option in p.opts}

    if page == "frameworks.md":
        known |= FRAMEWORK_FLAGS
    code = "\n".join([*blocks(text), *re.findall(r"`([^`\n]+)`", text)])
    named = re.findall(r"\bcclsearch ([a-z]+)", code)
    no_programs = re.sub(r"^```\w+\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    commands_only = re.sub(r"^.*-->.*$", "", no_programs, flags=re.MULTILINE)  # arrows look alike
    options = re.findall(r"(?<=[\s`\[])--[a-z][a-z-]*(?=[\s`\]]|$)", commands_only)

    assert {name for name in named if not any(name in words.split() for words in COMMANDS)} == set()
    assert set(options) - known == set()


@pytest.mark.parametrize(
    "line",
    sorted(
        {
            line.partition("  #")[0].strip()
            for text in PAGES.values()
            for block in [*blocks(text), *blocks(text, "bash"), *blocks(text, "yaml")]
            for line in re.findall(r"^(?:- run: |    - |\s*run: )?(cclsearch [a-z].*)", block, re.M)
            if not re.search(r"[|\[]|\.\.\.|\\$", line)
        }
    ),
)
def test_a_command_in_a_page_can_be_parsed(line):
    words = shlex.split(line)[1:]
    name = next(n for count in (2, 1) if (n := " ".join(words[:count])) in COMMANDS)

    with COMMANDS[name].make_context(name, words[len(name.split()) :]) as context:
        assert context.params


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_code_of_a_page_is_code(page):
    for block in blocks(PAGES[page], "python"):
        used = re.findall(r"\bcclsearch\.([a-zA-Z_]+)", block)
        assert ast.parse(block) and set(used) <= set(cclsearch.__all__)
    for block in blocks(PAGES[page], "bash"):
        subprocess.run(["bash", "-n", "-c", block], check=True)
    for block in blocks(PAGES[page], "toml"):
        assert tomllib.loads(block)
    for block in blocks(PAGES[page], "yaml"):
        assert yaml.safe_load(block)
    for block in blocks(PAGES[page], "json"):
        assert json.loads(block)


@pytest.mark.parametrize("page", ["README.md", "ci.md", "own_script.md", "recipes.md"])
def test_a_piece_of_a_study_in_a_page_is_one(page, tmp_path):
    for name in ("train.py", "bench.sh", "run.sh"):
        (tmp_path / name).touch()
    path = tmp_path / "study.toml"
    for block in blocks(PAGES[page], "toml"):
        whole = tomllib.loads(block)
        if "launch" not in whole:
            block += '\n[launch]\nrecipe = "command"\n'
        if "workload" not in whole:
            block += '[workload]\nname = "w"\nglobal_batch = 32\nsequence_length = 64\n'
        is_script = whole.get("launch", {}).get("recipe", "command") == "command"
        if is_script and "command" not in whole:
            block += '[command]\nrun = ["bash", "run.sh"]\n'
        if "space" not in whole:
            block += "[space.dp]\nchoices = [1]\n"
        path.write_text(block, encoding="utf-8")

        assert read_study_file(path, builtin_study(MACHINE)).space.dimensions


def test_the_readme_begins_with_the_two_commands():
    first = blocks(README)[0].splitlines()

    assert [line.partition("#")[0].strip() for line in first] == ["make run", "make test"]


def test_the_readme_has_every_exit_code():
    listed = README.partition("Exit codes:")[2].partition("\n\n")[0]

    assert re.findall(r"\b\d+\b", listed) == re.findall(r"^  (\d+) ", cli.FOOT, re.M)


def test_the_study_page_shows_a_file_that_can_be_read(tmp_path):
    (example,) = blocks(STUDY_PAGE, "toml")
    path = tmp_path / "study.toml"
    path.write_text(example, encoding="utf-8")

    study = read_study_file(path, builtin_study(MACHINE))

    document = tomllib.loads(example)
    assert study.name == document["name"]
    assert study.budget.trials == document["budget"]["trials"]
    assert [d.name for d in study.space.dimensions] == list(document["space"])


@pytest.mark.parametrize("name", [n for n in described(Study) if n not in SET_BY_US])
def test_the_study_page_names_every_field_of_a_study(name):
    assert re.search(rf"\b{name.rpartition('.')[2]}\b", STUDY_PAGE), f"{name} is not in study.md"


@pytest.mark.parametrize(("language", "name"), [("toml", "study.toml"), ("python", "train.py")])
def test_pages_show_the_examples_as_they_are(language, name):
    paths = (ROOT / "docs" / "examples").glob(f"*/{name}")
    examples = [path.read_text(encoding="utf-8") for path in paths]

    shown_first = blocks(DOCS["own_script.md"], language)[:1]
    for shown in [*blocks(DOCS["recipes.md"], language), *shown_first]:
        indented = textwrap.indent(shown, "    ")
        assert any(shown in example or indented in example for example in examples)


def test_the_study_of_the_readme_can_be_read(tmp_path):
    (example,) = blocks(README, "toml")
    path = tmp_path / "study.toml"
    path.write_text(example, encoding="utf-8")
    (tmp_path / "train.py").touch()

    study = read_study_file(path, builtin_study(MACHINE))

    assert [d.name for d in study.space.dimensions] == ["dp", "micro_batch"]
