"""`recipes`: what is known of frameworks."""

import typer

from evaluator.recipes.catalog import FRAMEWORKS, framework_recipe
from evaluator.recipes.frameworks.flags import recorded_versions
from search.cli.options import JsonOption, examples, print_result

app = typer.Typer(rich_markup_mode=None)


@app.command(name="recipes", epilog=examples("cclsearch recipes"))
def recipes(as_json: JsonOption = False) -> None:
    """List the frameworks that can be searched by their own launch line."""
    facts = [
        {
            "name": name,
            "title": (table := framework_recipe(name).table).title,
            "versions": recorded_versions(name),
            "knobs": len(table.knobs),
            "rules": len(table.rules),
            "evidence": len(table.evidence),
        }
        for name in FRAMEWORKS
    ]
    print_result(facts, (f"{f['name']}  {f['title']}" for f in facts), as_json=as_json)
