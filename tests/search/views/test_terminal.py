"""Tables line up; what others wrote does not steer a terminal, what we draw there still does."""

import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import Dimension
from records.trial import Config, Policy
from search.views import terminal as tables
from search.views.console import plain, plain_line
from search.views.document import Column, Table, number_column
from search.views.terminal import table_lines
from tests.support import records as testing

STEERING = "\x1b[2J\x1b]0;title\x07\x9b2J\u202e\u2066[/x] [red]"
STUDY = "20260101-000000-aaaa"


@given(st.text())
def test_what_is_plain_holds_no_control_character_and_is_plain_already(text):
    assert not [c for c in plain(text).replace("\r\n", "") if ord(c) < 32 and c not in "\n\t"]
    assert plain(plain(text)) == plain(text)
    assert "\n" not in plain_line(text)


def test_plain_texts_are_left_as_they_are():
    text = "größe\t1\r\n日本語 🎉 █▒"
    assert plain(text) == text


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Path:
    """A store in which every name and value is hostile, as no import makes it."""
    store = Store(tmp_path_factory.mktemp("foreign") / "store")
    study = replace(
        testing.study(Dimension(name=f"k{STEERING}", choices=(f"v{STEERING}", "w"))),
        name=f"n{STEERING}",
    )
    store.create(STUDY, study, "test")
    kept = store.artifacts.keep_text("log", "rank0.log")
    outcomes = (
        replace(testing.measured(), artifacts=(replace(kept, name=f"a{STEERING}"),)),
        testing.failed(message=f"m{STEERING}"),
    )
    config = Config({f"k{STEERING}": f"v{STEERING}"})
    for trial in testing.history(*outcomes):
        policy = Policy(source=f"# {STEERING}\n", author=f"a{STEERING}", rationale=STEERING)
        intent = PendingTrial(
            ordinal=trial.ordinal, policy=policy, started_at=trial.started_at, exchange=None
        )
        with store.lock(STUDY):
            store.begin(STUDY, intent, None)
            store.finish(STUDY, replace(trial, config=config, policy=policy))
    store.update(STUDY, status="interrupted")
    store.close()
    return store.root


COMMANDS = (
    "list",
    "list --json",
    "show",
    "trial show 0",
    "trial show 1",
    "trial files 0 --to copied",
    "best",
    "replay --mode policy",
    "compare trial:0 trial:1",
)
ALL_IN_ONE = """
import sys
from search.cli.main import main
for line in sys.argv[2:]:
    print(f"== {line}", flush=True)
    sys.argv = ["cclsearch", *line.split(), "--store", STORE]
    try:
        main()
    except SystemExit:
        pass
"""


@pytest.fixture(scope="module")
def printed(foreign, tmp_path_factory) -> dict[str, bytes]:
    """Runs all commands on a terminal of their own; gives what reached it, by command."""
    ours, theirs = pty.openpty()
    program = ALL_IN_ONE.replace("STORE]", f"{str(foreign)!r}]")
    process = subprocess.Popen(
        [sys.executable, "-c", program, "", *COMMANDS],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path_factory.mktemp("here"),
        env={"PATH": os.defpath, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    text = b""
    while piece := _read(ours):
        text += piece
    os.close(ours)
    process.wait()
    parts = (part.partition(b"\r\n") for part in text.split(b"== ")[1:])
    return {name.decode(): rest for name, _, rest in parts}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_a_control_character_of_others(printed, command):
    shown = printed[command]
    assert shown and b"Traceback" not in shown
    for steering in (b"\x1b[2J", b"\x1b]0", b"\x07", "\x9b".encode(), "\u202e".encode()):
        assert steering not in shown


def test_what_we_style_ourselves_is_styled(printed):
    assert b"\x1b[1m" in printed["list"]
    assert b"\x1b[1;33mverdict" in printed["compare trial:0 trial:1"]
    assert b"\\u001b[2J" in printed["trial show 0"]


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 65536)
    except OSError:  # the other side was closed
        return b""


def test_nothing_is_printed_on_another_console():
    product = Path(__file__).parents[3] / "search"
    users = [path.name for path in product.rglob("*.py") if "import Console" in path.read_text()]
    assert sorted(users) == ["console.py", "terminal.py"]  # the one itself, types


def test_columns_line_up_fit_the_page_and_cannot_be_torn_apart():
    names = ["a", "bcd", "核心", "a\nb\x1b[2J\tc"]
    table = Table.of(
        Column(heading="name", cells=names), number_column("n", ["1", "1000", "2", "3"])
    )
    long = Column(heading="name", cells=["kernel" * 30], yielding=True)

    assert table_lines(table, width=80) == [
        "name          n",
        "a             1",
        "bcd        1000",
        "核心          2",
        "a b [2J c     3",
    ]
    cut = table_lines(Table.of(number_column("n", ["1"]), long), width=40)[1]
    assert (len(cut), cut[-3:]) == (40, "...")


def test_on_a_terminal_lines_break_between_words(monkeypatch, capsys):
    monkeypatch.setattr(tables, "on_terminal", lambda: True)
    monkeypatch.setattr(tables, "page_cells", lambda: 20)

    tables.echo_wrapped("why: launches_of_one_configuration_vary more than these two")
    tables.echo_wrapped("next: cclsearch trace diff trial:0 trial:1")

    assert capsys.readouterr().out.splitlines() == [
        "why:",
        "  launches_of_one_configuration_vary",
        "  more than these",
        "  two",
        "next: cclsearch trace diff trial:0 trial:1",
    ]
