"""Write the reference pages that follow from the code: commands, knobs, metrics, HTTP API."""

import json
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from evaluator.metrics.base import Metric
from evaluator.metrics.registry import metric, metric_names
from evaluator.recipes.catalog import FRAMEWORKS, framework_recipe
from evaluator.recipes.frameworks.flags import recorded_versions
from search.cli.main import COMMANDS, loaded
from search.service.app import API, RESPONSES, ROUTES
from search.traces.tables import COLUMNS

WIDTH = 100
RECIPES = {"builtin": "knobs", "collectives": "setup"}


def write_reference(folder: Path) -> None:
    """Write every page into a folder."""
    folder.mkdir(exist_ok=True)
    pages = {
        "cli": commands(),
        "knobs": knobs(),
        "frameworks": framework_recipes(),
        "metrics": metrics(),
        "api": http_api(),
    }
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def commands() -> Iterator[str]:
    """Yield the help of every command, as the terminal shows it."""
    yield "# Commands\n\nEvery command accepts `--help`. Most accept `--json`.\n"
    for name in COMMANDS:
        yield from _command(name, loaded(name))


def _command(name: str, command: Any) -> Iterator[str]:
    with command.make_context(f"cclsearch {name}", [], resilient_parsing=True) as context:
        help_text = command.get_help(context)
    yield f"## cclsearch {name}\n\n```text\n{help_text}\n```\n"
    for inside, each in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {inside}", each)


def knobs() -> Iterator[str]:
    """Yield a table of the knobs of each recipe that has its own."""
    yield "# Knobs\n\nAn empty `[space.NAME]` table in a study file takes all choices of a knob.\n"
    for recipe, table in RECIPES.items():
        text = (files("evaluator.recipes") / f"{recipe}.toml").read_text(encoding="utf-8")
        yield f"## Recipe {recipe}\n\n| knob | sets | has an effect |\n|---|---|---|"
        for name, knob in tomllib.loads(text)[table].items():
            when = f"`{knob['when']}`" if "when" in knob else "always"
            yield f"| `{name}` | {knob.get('description', '')} | {when} |"
        yield ""


def framework_recipes() -> Iterator[str]:
    """Yield what is known of each framework: versions, knobs, rules and evidence."""
    yield "# Recipes of frameworks\n\n`cclsearch recipe show NAME` prints the same.\n"
    yield "| recipe | framework | recorded flags | knobs | rules | evidence | checked |"
    yield "|---|---|---|---|---|---|---|"
    tables = {name: framework_recipe(name).table for name in FRAMEWORKS}
    for name, table in tables.items():
        counts = " | ".join(map(str, map(len, (table.knobs, table.rules, table.evidence))))
        versions = ", ".join(recorded_versions(name))
        yield f"| `{name}` | {table.title} | {versions} | {counts} | {table.checked} |"
    for table in tables.values():
        yield f"\n## {table.title}\n\n| knob | flag | sets | has an effect |\n|---|---|---|---|"
        for knob, of in table.knobs.items():
            when = f"`{of.when}`" if of.when else "always"
            yield f"| `{knob}` | `{of.flag}` | {of.description} | {when} |"
        if table.rules:
            yield "\n| rule | expression | why |\n|---|---|---|"
        for rule, (expression, reason) in table.rules.items():
            yield f"| {rule} | `{_cell(expression)}` | {_cell(reason)} |"
        if table.evidence:
            yield "\n| where | a trial must show | why |\n|---|---|---|"
        for each in table.evidence:
            signs = [*each.collectives, *([f"`{_cell(each.log)}` in its log"] if each.log else [])]
            yield f"| `{_cell(each.when)}` | {', '.join(signs)} | {_cell(each.reason)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def metrics() -> Iterator[str]:
    """Yield the definition of every metric, and the columns of the tables of traces."""
    yield "# Metrics\n\n`cclsearch metrics show NAME` prints the same.\n"
    for name in metric_names():
        yield from _metric(metric(name))
    yield "## Tables of traces\n\n`trace = cclsearch.trace(PATH)` has these methods; each returns a"
    yield "pandas `DataFrame`.\n"
    for name, columns in COLUMNS.items():
        yield f"### trace.{name}()\n\n| column | holds |\n|---|---|"
        yield from (f"| `{column}` | {meaning} |" for column, meaning in columns.items())
        yield ""


def _metric(of: Metric) -> Iterator[str]:
    sources = ", ".join(sorted(of.sources))
    yield f"## {of.name}\n"
    yield f"{of.label}; {of.unit}, {of.better} is better; version {of.version}; from {sources}.\n"
    yield f"{_plain(of.description)}\n"
    if of.differs:
        yield f"CCL-Bench: {_plain(of.differs)}\n"


def _plain(paragraph: str) -> str:
    """Return a paragraph without marks that Markdown would read."""
    escaped = re.sub(r"([*_<>\[\]`])", r"\\\1", paragraph)
    return "\n".join(textwrap.wrap(escaped, WIDTH, break_on_hyphens=False))


def http_api() -> Iterator[str]:
    """Yield every path of the API with its parameters and answers."""
    app = FastAPI(title="cclsearch")
    for routes in ROUTES:
        app.include_router(routes, prefix=API, responses=RESPONSES)
    description = app.openapi()
    yield "# HTTP API\n\nThe service describes itself at `/api/v1/openapi.json`; this page is made"
    yield "from it. See [the service](../service.md) for tokens and roles.\n"
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield from _operation(f"{method.upper()} {path}", operation)
    yield "## Schemas\n"
    for name, schema in description["components"]["schemas"].items():
        yield f"### {name}\n\n```json\n{json.dumps(schema, indent=1)}\n```\n"


def _operation(heading: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {heading}\n\n{operation.get('description') or operation.get('summary', '')}\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | in | meaning |\n|---|---|---|"
        for each in parameters:
            meaning = each.get("description") or each["schema"].get("description", "")
            yield f"| `{each['name']}` | {each['in']} | {meaning} |"
        yield ""
    answers = ", ".join(f"{code}: {a['description']}" for code, a in operation["responses"].items())
    yield f"Answers: {answers}.\n"
