"""What a stranger's study file or bundle cannot do: every attack is real, on this machine."""

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.timing.bench_csv import read_bench
from records.errors import StudyError
from records.store.store import Store
from records.study import Budget, Command, Dimension, Launch, Llm, Study
from search.cli.run import main as resume_for_service
from search.service.runner import REFUSAL, run_folder
from search.study.study_file import _LONG_KEY
from tests.support import records as testing
from tests.support.search import ScriptedMessagesServer as Server

KEY = "sk-ant-loopback-0123456789abcdef"
STUDY = "20260101-000000-aaaa"
TINY = Path(__file__).parents[2] / "data" / "tiny_study.toml"


@pytest.fixture
def listener() -> Iterator[Server]:
    with Server([]) as server:
        yield server


@pytest.fixture
def imported(cclsearch, tmp_path) -> Callable[..., Path]:
    """Imports a stranger's bundle; gives the store it is in, and what import printed."""

    def make(study: Study) -> tuple[Path, str]:
        theirs, ours, bundle = (tmp_path / name for name in ("theirs", "ours", "x.cclsearch"))
        with closing(Store(theirs)) as store:
            store.create(STUDY, study, "test")
            store.update(STUDY, status="interrupted")
        cclsearch("export", "--format", "bundle", "-o", bundle, "--store", theirs)
        ended = cclsearch("import", bundle, "--store", ours)
        assert (ended.code, ended.err) == (0, "")
        return ours, ended.out

    return make


def hostile(mark: Path, **fields: object) -> Study:
    """A study whose command leaves a mark and prints no result."""
    return replace(
        testing.study(Dimension(name="n", choices=(1, 2))),
        launch=Launch(recipe="command"),
        command=Command(
            run=("bash", "-c", f"touch {mark}"), environment={"MODE": "evil.so"}, rank_count="1"
        ),
        budget=Budget(trials=1, max_failures=1),
        strategy="grid",
        seed_policy="first",
        **fields,
    )


@pytest.mark.parametrize(
    "command",
    [("resume", STUDY), ("replay", STUDY, "--mode", "measure"), ("run", "--from", STUDY)],
)
def test_an_imported_study_launches_nothing_before_it_is_trusted(
    cclsearch, imported, tmp_path, command
):
    store, said = imported(hostile(tmp_path / "mark"))
    refused = cclsearch(*command, "--store", store)
    assert (refused.code, (tmp_path / "mark").exists()) == (2, False)
    for text in (said, refused.err, cclsearch("show", STUDY, "--store", store).out):
        assert f"bash -c 'touch {tmp_path / 'mark'}'" in text
        assert "MODE=evil.so" in text
    assert "--trust" in refused.err
    studies = json.loads(cclsearch("list", "--json", "--store", store).out)
    assert [study["id"] for study in studies] == [STUDY]


def test_the_files_that_an_imported_study_names_are_shown_before_it_runs(
    cclsearch, imported, tmp_path
):
    study = hostile(tmp_path / "mark")
    command = replace(study.command, file_digests={"train it.py": "d" * 64})
    store, said = imported(replace(study, seed_policy="/home/me/id_rsa", command=command))
    refused = cclsearch("resume", STUDY, "--store", store)
    assert refused.code == 2
    for text in (said, refused.err, cclsearch("show", STUDY, "--store", store).out):
        assert "names files: /home/me/id_rsa 'train it.py'" in text


def test_the_service_launches_no_imported_study_before_it_is_trusted(imported, tmp_path):
    store, _ = imported(hostile(tmp_path / "mark"))
    folder = run_folder(store, STUDY)
    folder.mkdir(parents=True)
    resume_for_service(store, STUDY)
    assert "this study was imported" in (folder / REFUSAL).read_text()
    assert not (tmp_path / "mark").exists()


def test_trust_is_given_once(cclsearch, imported, tmp_path):
    store, _ = imported(hostile(tmp_path / "mark"))
    cclsearch("resume", STUDY, "--trust", "--store", store)
    assert (tmp_path / "mark").exists()
    again = cclsearch("resume", STUDY, "--store", store, "--trials", "1")
    assert "--trust" not in again.err


def test_trust_in_one_bundle_is_none_in_another(cclsearch, imported, tmp_path):
    store, _ = imported(hostile(tmp_path / "mark"))
    with closing(Store(store)) as records:
        digest = records.find(STUDY).study.origin.digests["study.jsonl"]
        records.trust(digest.translate(str.maketrans("0123456789abcdef", "123456789abcdef0")))
    assert cclsearch("resume", STUDY, "--store", store).code == 2
    assert not (tmp_path / "mark").exists()


def test_a_bundle_brings_no_host_for_the_model(imported, monkeypatch, tmp_path):
    # An export leaves the host out; here it is kept, as whoever writes a bundle may.
    monkeypatch.setattr("search.transfer.export.plain_study", lambda study: study)
    store, said = imported(hostile(tmp_path / "mark", llm=Llm(base_url="https://evil.example")))
    assert "base_url 'https://evil.example' is left out" in said
    with closing(Store(store)) as records:
        assert [row.study.llm.base_url for row in records.studies()] == [None]


def test_a_bundle_brings_no_python_for_the_ranks(imported, monkeypatch, tmp_path):
    monkeypatch.setattr("search.transfer.export.plain_study", lambda study: study)
    study = hostile(tmp_path / "mark")
    study = replace(study, launch=replace(study.launch, python="/tmp/evil"))
    store, said = imported(study)
    assert "python '/tmp/evil' is left out: a bundle cannot decide what is started here" in said
    with closing(Store(store)) as records:
        assert [row.study.launch.python for row in records.studies()] == [None]


def test_a_bundle_reads_no_file_of_ours_as_its_seed(cclsearch, imported, tmp_path):
    private = tmp_path / "id_rsa"
    private.write_text("PRIVATE")
    store, _ = imported(replace(hostile(tmp_path / "mark"), seed_policy=str(private)))
    ended = cclsearch("resume", STUDY, "--trust", "--store", store)
    assert (ended.code, "is not read here" in ended.err) == (2, True)
    assert not any("PRIVATE" in path.read_text() for path in (store / "journal").iterdir())


def test_a_study_file_gets_no_key_to_its_host(cclsearch, listener, monkeypatch, tmp_path):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    study = tmp_path / "study.toml"
    study.write_text(f'{TINY.read_text()}\n[llm]\nbase_url = "{listener.url}"\n')
    ended = cclsearch("run", "-c", study, "--strategy", "llm", "--trials", "1")
    assert (ended.code, listener.requests) == (2, [])
    assert f"export ANTHROPIC_BASE_URL={listener.url}" in ended.err
    assert KEY not in ended.out + ended.err


@pytest.mark.parametrize("name", ["a\nnext: cclsearch x", "a\x1b[2J", "a\u202eb"])
def test_a_name_that_could_pass_for_a_line_of_ours_is_not_imported(cclsearch, tmp_path, name):
    with closing(Store(tmp_path / "theirs")) as store:
        store.create(STUDY, testing.study(Dimension(name="k", choices=(name, "b"))), "test")
    bundle = tmp_path / "x.cclsearch"
    cclsearch("export", "--format", "bundle", "-o", bundle, "--store", tmp_path / "theirs")
    refused = cclsearch("import", bundle, "--store", tmp_path / "ours")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "is a name with a control character" in refused.err


@pytest.mark.parametrize(
    "names", [["a\0b"], ["x" * 5000], ["x" * 250], ["a", "a/b"], ["policy.py"]]
)
def test_files_of_any_name_are_copied_or_refused_in_one_line(cclsearch, tmp_path, names):
    with closing(Store(tmp_path / "store")) as store:
        kept = store.artifacts.keep_text("content", "rank0.log")
        files = tuple(replace(kept, name=name) for name in [*names, "last"])
        history = testing.history(replace(testing.measured(), artifacts=files))
        store.add_study("other", testing.study(), "test", history)
    ended = cclsearch("trial", "files", "other", 0, "--to", tmp_path / "to", "--store", store.root)
    assert (ended.code, len(ended.err.splitlines())) == (4, 1)
    assert (tmp_path / "to" / "last").read_text() == "content"
    assert (tmp_path / "to" / "policy.py").read_text() != "content"


@pytest.fixture
def no_files(tmp_path) -> dict[str, Path]:
    """What a name may lead to that is no file to read, or too large a one."""
    made = {name: tmp_path / f"{name}.py" for name in ("pipe", "folder", "link", "huge")}
    os.mkfifo(made["pipe"])
    made["folder"].mkdir()
    made["link"].symlink_to("/dev/zero")
    with made["huge"].open("wb") as file:
        file.truncate(1 << 40)
    return made


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "huge"])
@pytest.mark.parametrize(
    "command",
    [
        "policy check FILE",
        "space size --card FILE",
        "space size -c FILE",
        "run --trials 1 --seed-policy FILE",
        "bench search FILE",
        "metrics list --metrics-file FILE",
    ],
)
def test_what_is_no_file_is_refused_in_one_line(cclsearch, no_files, command, kind):
    refused = cclsearch(*command.replace("FILE", str(no_files[kind])).split())
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "not a regular file" in refused.err or "more than" in refused.err


@pytest.fixture
def no_tables(tmp_path, no_files) -> Path:
    """A folder of which no name leads to a CSV file to read."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, path in no_files.items():
        path.rename(folder / f"{name}.csv")
    return folder


def test_what_is_no_file_is_left_out_of_an_analysis(cclsearch, no_tables):
    refused = cclsearch("bench", "analyze", "--dir", no_tables)
    left_out = [line for line in refused.err.splitlines() if "left out" in line and ".csv" in line]
    assert refused.code == 2
    assert len(left_out) == 4
    assert [line.count("not a regular file") for line in sorted(left_out)] == [1, 0, 1, 1]


def test_what_is_no_file_is_not_compared(cclsearch, no_tables):
    for name in ("folder", "huge", "link", "pipe"):
        refused = cclsearch("compare", no_tables, no_tables)
        path = no_tables / f"{name}.csv"
        assert (refused.code, len(refused.err.splitlines())) == (2, 1)
        assert f"{path}: cannot be read as CSV (it " in refused.err
        path.rename(no_tables / name)


def test_a_table_of_one_long_line_is_not_read_to_its_end(tmp_path):
    long = tmp_path / "long.csv"
    with long.open("wb") as file:
        file.truncate(300 << 20)
    tracemalloc.start()
    with pytest.raises(StudyError, match="more than 16 MiB"):
        read_bench(long)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("head", ["", '{"benchmarks": ', '{"step_times_s": '])
def test_json_of_many_small_values_is_refused_before_it_takes_memory(cclsearch, tmp_path, head):
    file = tmp_path / "many.json"
    file.write_text(f"{head}[{'[],' * 4_100_000}[]]{'}' * bool(head)}")
    for command in (("bench", "search", file), ("compare", file, file)):
        refused = cclsearch(*command)
        assert (refused.code, len(refused.err.splitlines())) == (2, 1)
        assert "holds more than 4000000 values" in refused.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{'.'.join('a' * 100_000)} = 1", "a key has more than 32 parts"),
        (f"[{' . '.join('a' * 100_000)}]", "a key has more than 32 parts"),
        (f"x = {'{a = ' * 5000}1{'}' * 5000}", "not TOML"),
        (f"[space.tp]\nchoices = {[*range(1, 200_001)]}", "200000 choices are more than 4096"),
        (f"[environment]\nworld_size = {2**62}", "world_size is 4611686018427387904; it must be"),
        ("\n".join(f'[[context]]\nname = "c{n}"' for n in range(3000)), "3000 contexts are more"),
        ("a" * (9 << 20), "more than 8 MiB"),
    ],
    ids=["key", "table", "depth", "choices", "world", "contexts", "size"],
)
def test_a_study_file_without_measure_ends_in_one_line(cclsearch, tmp_path, text, said):
    study = tmp_path / "study.toml"
    study.write_text(text)
    refused = cclsearch("space", "size", "-c", study)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert said in refused.err


@given(st.lists(st.text(alphabet="ab-_", min_size=1), min_size=1, max_size=32), st.text())
def test_a_key_of_few_parts_is_no_long_one(parts, value):
    text = f"{'.'.join(parts)} = {json.dumps(value)}"
    assert value.count(".") > 30 or not _LONG_KEY.search(text)


def test_a_report_replaces_a_named_file_only_when_it_is_told_to(cclsearch, tmp_path):
    with closing(Store(tmp_path / "store")) as store:
        store.add_study("one", testing.study(), "test", testing.history(testing.measured()))
    precious = tmp_path / "precious.html"
    precious.write_text("mine")
    command = ("report", "one", "-o", precious, "--store", store.root)
    refused = cclsearch(*command)
    assert (refused.code, precious.read_text()) == (2, "mine")
    assert "--force" in refused.err
    assert cclsearch(*command, "--force").code == 0
    assert precious.read_text() != "mine"
