"""What commands print and the service offers, over one store, is what the golden files say."""

import difflib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from evaluator.doctor import CheckResult, State
from evaluator.evaluate import diagnose
from evaluator.metrics.base import Evidence
from evaluator.traces.analysis.breakdown import breakdown
from evaluator.traces.readers.read import read_traces
from records.llm_exchange import SUBMITTED, LlmExchange, TokenUsage
from records.store.journal import Entry, StudyCreated, TrialFinished
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import (
    Budget,
    Command,
    Constraint,
    Context,
    Dimension,
    Launch,
    Llm,
    Measure,
    Objective,
    Price,
    SearchSpace,
    Study,
)
from records.trial import Config, FailureKind, Policy
from search import doctor
from search.cli.main import COMMANDS, loaded
from search.compose import Backend, compose_search
from search.loop.batch import Capacity
from search.loop.trial import ContextEvaluator
from search.service.app import app_of
from search.service.config import ServiceConfig
from search.service.runner import Scheduler
from search.service.service import Service
from search.study.spaces import prepare
from search.views.console import _Neutral
from search.views.terminal import PlainProgress
from tests.support import records as testing
from tests.support.evaluator import Fails, TabularEvaluator, Takes

GOLDEN = Path(__file__).parent / "golden" / "printed"
DATA = Path(__file__).parents[1] / "data"
GLOO, CARD = DATA / "traces" / "gloo_ddp_2rank", DATA / "cards" / "training.yaml"
TINY = (DATA / "tiny_study.toml").read_text(encoding="utf-8")
MACHINE = 'device = "cpu"\naccelerator = "cpu"\nmemory_bytes = 8000000000'
STUDY_FILE = TINY.replace('device = "cpu"', MACHINE)
COLUMNS = 100
Words: TypeAlias = tuple[str, ...]
RACED, FRONT = "20260101-000000-aaaa", "20260102-000000-bbbb"
CONTEXTS, TRACED = "20260103-000000-cccc", "20260104-000000-dddd"
MIB = 1 << 20
TABLE = {
    0: Takes(step_time_s=0.50, noise=0.02, peak_memory_bytes=8 * MIB),
    1: Takes(step_time_s=0.40, noise=0.02, peak_memory_bytes=9 * MIB),
    2: Fails(kind=FailureKind.OUT_OF_MEMORY, message="out of memory: 3 GiB asked, 2 GiB free"),
    3: Takes(step_time_s=0.395, noise=0.02, peak_memory_bytes=6 * MIB),
    4: Takes(step_time_s=0.60, noise=0.02, peak_memory_bytes=4 * MIB),
}
SEED = "def generate_config(workload, environment):\n    return {'n': 0}\n"
STUDY = replace(
    testing.study(),
    space=SearchSpace(
        dimensions=(Dimension(name="n", choices=(*TABLE, 9)),),
        constraints=(Constraint(name="small", expression="n < 9", reason="there are no more"),),
    ),
    strategy="coordinate",
    budget=Budget(trials=5, patience=5, max_failures=5),
    launch=Launch(recipe="command"),
    command=Command(run=("true",), rank_count="1"),
    measure=Measure(
        infrastructure_retries=0,
        self_test_rounds=2,
        race_rounds=4,
        confirm_top=2,
        confirm_rounds=2,
        max_confirm_rounds=4,
        profiled_steps=0,
        together="never",
    ),
)
LONG = Context(
    name="long",
    workload=replace(testing.WORKLOAD, sequence_length=256),
    environment=testing.ENVIRONMENT,
    held_out=True,
)
MODEL = Llm(model="a-model", price=Price(input=4.0, output=20.0, cache_read=0.5))
EXCHANGE = LlmExchange(
    model="a-model",
    request='[{"messages": [{"role": "user", "content": "What next?"}]}]',
    reply='[{"request": 0, "form": "tool", "status": 200, "body": "{}"}]',
    result=SUBMITTED,
    usage=TokenUsage(input_tokens=3000, output_tokens=400, cache_read_tokens=2000),
    latency_s=1.5,
    request_count=1,
)


JSON_CASES = {
    "list": "list",
    "show": f"show {RACED}",
    "show_front": f"show {FRONT} --front",
    "show_rescored": f"show {RACED} --objective peak_memory --last 1",
    "show_constraints": f"show {RACED} --constraints",
    "best": f"best {RACED}",
    "trial_show_measured": f"trial show {RACED} 1",
    "trial_show_failed": f"trial show {RACED} 2",
    "trial_show_traced": f"trial show {TRACED} 0",
    "trial_show_in_contexts": f"trial show {CONTEXTS} 1",
    "best_in_context": f"best {CONTEXTS} --context long",
    "show_interrupted": f"show {TRACED}",
    "trial_show_proposed": f"trial show {TRACED} 1",
    "trial_files": f"trial files {RACED} 1 --to files",
    "trial_logs": f"trial logs {RACED} 1",
    "replay_llm": f"replay {RACED} --mode llm",
    "replay_policy": f"replay {RACED} --mode policy --vary global_batch=16,32",
    "replay_score": f"replay {RACED} --mode score --objective peak_memory",
    "leaderboard": "leaderboard",
    "compare_trials": f"compare trial:{RACED}:0 best:{RACED}",
    "verify": "doctor --verify",
    "gc": "gc --keep-best 0 --dry-run",
    "metrics_list": "metrics list",
    "metrics_show": "metrics show mfu straggler bw_allgather",
    "metrics_compute": f"metrics compute trial:{TRACED}:0 --no-cache",
    "trace_breakdown": f"trace breakdown trial:{TRACED}:0 --no-cache",
    "trace_collectives": f"trace collectives trial:{TRACED}:0 --no-cache",
    "trace_stragglers": f"trace stragglers trial:{TRACED}:0 --no-cache",
    "trace_kernels": f"trace kernels trial:{TRACED}:0 --no-cache",
    "trace_diff": f"trace diff trial:{TRACED}:0 trial:{TRACED}:0 --no-cache",
    "space_size": "space size -c study.toml",
    "space_check": "space check tp=2 -c study.toml",
    "space_sample": "space sample -n 2 -c study.toml",
    "space_estimate": "space estimate -n 2 -c study.toml",
    "space_explain": "space explain -c study.toml",
    "space_explain_card": f"space explain --card {CARD} --batch-size 8",
    "policy_check": "policy check sharded -c study.toml",
}
TEXT_CASES = {
    "list": "list",
    "show": f"show {RACED}",
    "show_front": f"show {FRONT} --front",
    "best_arguments": f"best {RACED} --format args",
    "best_policy": f"best {RACED} --format policy",
    "trial_show": f"trial show {TRACED} 0",
    "compare": f"compare trial:{RACED}:0 best:{RACED} --display explain",
    "leaderboard": "leaderboard",
    "trace_breakdown": f"trace breakdown trial:{TRACED}:0 --no-cache",
    "bench_mix": f"bench mix trial:{TRACED}:0",
}


def commands(named: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[Words]:
    """The words of every command and of all below it."""
    for name, command in named.items():
        yield (*above, name)
        yield from commands(getattr(command, "commands", {}), (*above, name))


def help_file(words: Words) -> str:
    return f"help/{'_'.join(words) or 'cclsearch'}.txt"


HELP = ((), *commands({name: loaded(name) for name in COMMANDS}))
REPORTS, OPENAPI = ("report.html", "report.md"), "openapi.json"


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory) -> Path:
    """A search with a failure, a race and repeats, two like it, and a trial with traces."""
    scratch, root = tmp_path_factory.mktemp("searched"), tmp_path_factory.mktemp("golden-store")
    with closing(Store(scratch)) as store:
        search(store, RACED, STUDY)
        search(store, FRONT, replace(STUDY, more_objectives=(Objective(expression="peak_memory"),)))
        search(store, CONTEXTS, replace(STUDY, contexts=(LONG,)))
        add_traced(store)
        shutil.copytree(scratch / "artifacts", root / "artifacts")
        with closing(Store(root)) as fixed:
            for study_id in (RACED, FRONT, CONTEXTS, TRACED):
                fixed.restore(study_id, map(at_fixed_instants, store.entries(study_id)))
    return root


def search(store: Store, study_id: str, study: Study) -> None:
    """Search a study over the table to its end."""
    rows = {Config({"n": n}): ending for n, ending in TABLE.items()}
    around = Backend(
        scrubber=None,
        evaluator=ContextEvaluator(TabularEvaluator(endings=rows)),
        model=lambda *_: pytest.fail("no model is asked"),
        seed=Policy(source=SEED, author="seed"),
        fits=lambda *_: False,
        capacity=Capacity(trial_count=1, place_count=1),
        sleep=lambda _: None,
    )
    unseen = PlainProgress(io.StringIO())
    store.create(study_id, study, "test")
    with compose_search(study_id, prepare(study), store, unseen, around) as searching:
        searching.run()


def add_traced(store: Store) -> None:
    """Add a study whose trial 0 left traces; a model proposed trial 1, which failed."""
    store.create(TRACED, replace(testing.study(), strategy="llm", llm=MODEL), "test")
    paths = sorted(GLOO.glob("*.gz"))
    seen = Evidence(traces=read_traces(paths))
    traced = replace(
        testing.measured(),
        breakdown=breakdown(seen.split),
        diagnosis=diagnose(seen),
        artifacts=tuple(store.artifacts.keep(path, path.name) for path in paths),
    )
    outcomes = (
        ({"tp": 1, "pp": 1}, traced, None),
        ({"tp": 2, "pp": 1}, testing.failed(), EXCHANGE),
    )
    for ordinal, (config, outcome, exchange) in enumerate(outcomes):
        trial = testing.trial(ordinal, outcome, config, author="llm" if exchange else "seed")
        intent = PendingTrial(
            ordinal=ordinal, policy=trial.policy, started_at=testing.START, exchange=None
        )
        begun = store.begin(TRACED, intent, exchange)
        store.finish(TRACED, replace(trial, exchange=begun.exchange))
    store.update(TRACED, status="interrupted")


def at_fixed_instants(entry: Entry) -> Entry:
    """The entry as if it had been written when all of `tests.support.records` was."""
    match entry:
        case StudyCreated():
            return replace(entry, created_at=testing.START)
        case PendingTrial():
            return replace(entry, started_at=testing.START)
        case TrialFinished(trial=trial):
            over = replace(trial, started_at=testing.START, ended_at=testing.END)
            return replace(entry, trial=over)
        case _:
            return entry


@pytest.fixture(scope="session")
def seen_folder(tmp_path_factory) -> Path:
    """Where what was seen lies, to be copied over the golden files."""
    return tmp_path_factory.mktemp("seen")


@pytest.fixture
def is_golden(seen_folder, golden_store, tmp_path) -> Callable[[str, str], None]:
    """Fails where a text is not what its golden file says, but for folders."""

    def check(name: str, text: str) -> None:
        for folder, word in ((golden_store, "STORE"), (tmp_path / "here", "HERE"), (DATA, "DATA")):
            text = text.replace(str(folder), word)
        golden, actual = GOLDEN / name, seen_folder / name
        actual.parent.mkdir(exist_ok=True)
        actual.write_text(text, encoding="utf-8")
        expected = golden.read_text(encoding="utf-8") if golden.is_file() else ""
        change = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), str(golden), str(actual), lineterm=""
        )
        if text != expected:
            accept = f"cp {actual} {golden}, or for all: cp -r {seen_folder}/. {GOLDEN}"
            pytest.fail("\n".join([f"to accept: {accept}", *change]), pytrace=False)

    return check


def laid_out(document: object, indent: int = 0) -> str:
    """JSON in lines of about COLUMNS, each of which holds as many short parts as fit."""
    line = json.dumps(document, ensure_ascii=False)
    if len(line) + indent <= COLUMNS or not isinstance(document, dict | list):
        return line
    if isinstance(document, list):
        start, end, parts = "[", "]", [laid_out(each, indent + 1) for each in document]
    else:
        start, end = "{", "}"
        named = document.items()
        parts = [f"{json.dumps(name)}: {laid_out(each, indent + 1)}" for name, each in named]
    lines = parts[:1]
    for part in parts[1:]:
        both = f"{lines[-1]}, {part}"
        if "\n" in both or len(both) + indent >= COLUMNS or part.startswith("{"):
            lines[-1] += ","
            lines.append(part)
        else:
            lines[-1] = both
    margin = " " * (indent + 1)
    return f"{start}\n{margin}" + f"\n{margin}".join(lines) + f"\n{margin[1:]}{end}"


def read_json(text: str) -> object:
    """What was printed, floats to 10 digits and without what files take on this disk."""
    return json.loads(
        re.sub(r'"disk_bytes": \d+', '"disk_bytes": 0', text),
        parse_float=lambda digits: float(f"{float(digits):.10g}"),
    )


@pytest.fixture
def shown(cclsearch, golden_store, monkeypatch) -> Callable[..., str]:
    """Runs a command over the store, beside a study file; gives what it prints."""
    monkeypatch.setenv("CCLSEARCH_STORE", str(golden_store))
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("study.toml").write_text(STUDY_FILE, encoding="utf-8")

    def run(*arguments: object) -> str:
        ended = cclsearch(*arguments)
        assert ended.out, ended.err
        return ended.out

    return run


@pytest.mark.parametrize("words", HELP, ids=lambda words: " ".join(words) or "cclsearch")
def test_the_help_of_a_command_says_this(words, shown, is_golden):
    is_golden(help_file(words), shown(*words, "--help"))


@pytest.mark.parametrize("name", JSON_CASES)
def test_a_program_reads_this(name, shown, is_golden):
    printed = shown(*JSON_CASES[name].split(), "--json")

    is_golden(f"json/{name}.json", laid_out(read_json(printed)) + "\n")


@pytest.mark.parametrize("name", TEXT_CASES)
def test_a_person_reads_this(name, shown, is_golden):
    is_golden(f"text/{name}.txt", shown(*TEXT_CASES[name].split()))


@pytest.fixture
def on_terminal(shown, monkeypatch) -> Callable[[str, int], str]:
    """Runs a command on a terminal of this width; gives what it prints, without styles."""

    def run(line: str, width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setattr(_Neutral, "isatty", lambda _: True)
        return re.sub(r"\x1b\[[0-9;]*m", "", shown(*line.split()))

    return run


FINDING = CheckResult(
    subject="GPUs",
    state=State.MISSING,
    detail="no NVIDIA driver answers on this machine, so searches run on the CPU and their results "
    "are those of the CPU",
    remedy="install the driver that fits the GPU, restart the machine, and look again with doctor",
)


@pytest.mark.parametrize(
    "line",
    [
        "list",
        f"compare trial:{RACED}:0 trial:{RACED}:3",
        "doctor",
        f"trial show {RACED} 3",
        f"trial show {TRACED} 0",
        "leaderboard",
        f"show {RACED}",
    ],
)
def test_no_word_is_broken_on_a_common_terminal(on_terminal, line, monkeypatch):
    monkeypatch.setattr(doctor, "findings", lambda *_, **__: iter([FINDING]))
    narrow, wide = on_terminal(line, 80).splitlines(), on_terminal(line, 1000)

    lines = [each for each in narrow if not each.startswith("next: ") and len(each.split()) > 2]
    assert max(map(len, lines)) <= 80
    shown = "\n".join(each for each in narrow if "cclsearch" not in each)
    assert alphabetic_words(shown) <= alphabetic_words(wide) | {"cat"}  # how to see all columns


def alphabetic_words(text: str) -> set[str]:
    return {word for word in text.split() if word.isalpha()}


def test_a_narrow_list_leaves_out_whole_columns_and_says_so(on_terminal):
    heading, *_, last = on_terminal("list", 80).splitlines()

    assert heading.split() == ["study", "status", "trials", "best", "name"]
    assert last.startswith("strategy and objective do not fit here")


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_says_this(name, shown, is_golden):
    shown("report", RACED, "-o", name)

    is_golden(name, Path(name).read_text(encoding="utf-8"))


def test_the_service_describes_itself_like_this(golden_store, is_golden, tmp_path):
    service = Service(
        config=ServiceConfig(),
        folder=tmp_path,
        store=golden_store,
        tokens=(),
        scheduler=Scheduler(tmp_path),
    )

    document = app_of(service).app.openapi()

    document["info"]["version"] = "VERSION"
    is_golden(OPENAPI, laid_out(document) + "\n")


def test_no_golden_file_is_left_over():
    cases = [*(f"json/{name}.json" for name in JSON_CASES), *(f"text/{n}.txt" for n in TEXT_CASES)]
    names = {*map(help_file, HELP), *cases, *REPORTS, OPENAPI}

    assert {path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*.*")} == names
