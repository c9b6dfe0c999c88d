"""`export` and `entry check`: studies for other programs, machines and people."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from search.commands.options import JsonOption, StoreOption, StudyArgument, examples

app = typer.Typer(rich_markup_mode=None)
entry = typer.Typer(no_args_is_help=True, help="Look at an entry of CCL-Bench.")
app.add_typer(entry, name="entry")


@app.command(
    "export",
    epilog=examples(
        "cclsearch export --format csv -o trials.csv",
        "cclsearch export 20260131 --format bundle -o study.cclsearch",
        "cclsearch export --format entry -o entry/ --set contributor=Me --set contact=me@b.org",
        "cclsearch export --format bundle --redact --hash-names --perturb-times 2%",
    ),
)
def export(
    study_id: StudyArgument = "",
    form: Annotated[
        Literal["jsonl", "csv", "parquet", "entry", "bundle"],
        typer.Option(
            "--format",
            help="A trial per line or row (jsonl, csv, parquet), an entry of CCL-Bench (a folder), "
            "or the whole study in one file that `cclsearch import` takes (bundle).",
        ),
    ] = "jsonl",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="Where to write it. [default: STUDY.FORMAT here]"
        ),
    ] = None,
    trial: Annotated[
        str | None,
        typer.Option(
            metavar="N|best", help="Only this trial. [default: all; the best for an entry]"
        ),
    ] = None,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact", help="Put words for names of users, hosts, jobs, places and addresses."
        ),
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="NAME", help="With --redact: another name to take out. May repeat."
        ),
    ] = None,
    hash_names: Annotated[
        bool,
        typer.Option(
            "--hash-names",
            help="With --redact: hash names of operators and kernels in traces, under a key that "
            "nobody keeps. Collectives stay known.",
        ),
    ] = False,
    perturb_times: Annotated[
        str | None,
        typer.Option(
            "--perturb-times",
            metavar="2%",
            help="With --redact: change times in traces by up to this, in their order.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**62, metavar="N", help="Of --perturb-times.")
    ] = 0,
    no_traces: Annotated[
        bool, typer.Option("--no-traces", help="Leave out what profilers wrote.")
    ] = False,
    metrics_only: Annotated[
        bool,
        typer.Option(
            "--metrics-only",
            help="Only configurations, samples, metrics and failures: no files, policies or "
            "conversations.",
        ),
    ] = False,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Of an entry: a field of its card that the record does not tell. May repeat.",
        ),
    ] = None,
    check_only: Annotated[
        bool,
        typer.Option("--check-only", help="Of an entry: tell what it lacks, and write nothing."),
    ] = False,
    incomplete: Annotated[
        bool,
        typer.Option("--incomplete", help="Write an entry though it lacks something; it says so."),
    ] = False,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Leave out files that the record has lost.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a study for other programs, for CCL-Bench, or for another machine.

    Nothing is written unless all of it is. The record itself is only read.
    """
    from search.commands.export_records import Asked, export_study

    asked = Asked(
        form=form,
        output=output,
        trial=trial,
        redact=redact,
        names=tuple(name or ()),
        hash_names=hash_names,
        perturb_times=perturb_times,
        seed=seed,
        no_traces=no_traces,
        metrics_only=metrics_only,
        fields=tuple(fields or ()),
        check_only=check_only,
        incomplete=incomplete,
        allow_missing=allow_missing,
        force=force,
    )
    export_study(study_id, asked, store, as_json=as_json)


@entry.command(
    epilog=examples("cclsearch entry check entries/llama-tp4/", "cclsearch entry check .")
)
def check(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Folder of an entry, with its card and traces, or a card.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Check an entry of anybody against the rules of CCL-Bench that a program can decide.

    Exits with 3 when it breaks one.
    """
    from search.commands.export_records import check_entry

    check_entry(path, as_json=as_json)
