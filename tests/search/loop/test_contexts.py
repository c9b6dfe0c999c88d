"""One policy over several contexts: spaces, launches, means, searches and study files."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.objective import scoring_of
from records.errors import StudyError
from records.trial import Config, FailureKind, Measured, Policy, Purpose, outcome_in
from search.loop.leader import study_leader
from search.loop.ports import Proposal
from search.loop.trial import ContextEvaluator, mean_outcome, other_work_anywhere
from search.report.data import StudyRecord, report_lines
from search.study.spaces import join_contexts, own_part, part_of, space_of
from search.study.study_file import read_study_file
from tests.support import records as testing
from tests.support.evaluator import Fails, Takes
from tests.support.search import seconds

ADAPTIVE = """
def generate_config(workload, environment):
    return {"n": 2 if workload["global_batch"] > 16 else 1}
"""


@dataclass
class Scripted:
    """Proposes these programs, one after the other."""

    sources: tuple[str, ...]
    name = "scripted"

    def propose(self, _study, history):
        if len(history) > len(self.sources):
            return None
        return Proposal(policy=Policy(source=self.sources[len(history) - 1], author=self.name))


ONE = "def generate_config(workload, environment):\n    return {'n': 1}\n"


@pytest.fixture(scope="module")
def two(searched, context, study_with):
    """A search over the study's own work and a bigger one: what is good there is bad here."""

    def make(*sources: str, held_out=(), tables=None):
        study = study_with(context("big", global_batch=32), *held_out)
        table = {"example": seconds(2.0, 1.0, 4.0), "big": seconds(2.0, 4.0, 1.0), **(tables or {})}
        return searched(study, table, proposer=lambda _: Scripted(sources))

    return make


@pytest.fixture(scope="module")
def held_out(two, context):
    """Makes a search that is also judged in contexts that it never launched while it searched."""

    def make(*sources):
        later = context("later", held_out=True, global_batch=64)
        return two(*sources, held_out=(later,), tables={"later": seconds(4.0, 9.0, 1.0)})

    return make


@pytest.fixture(scope="module")
def finished(held_out, context):
    """A finished search with two contexts that were held out, and what it found."""
    search = held_out(ADAPTIVE, ONE)
    last = context("last", held_out=True, global_batch=8)
    search.study = replace(search.study, contexts=(*search.study.contexts, last))
    search.store.replace_study(search.study_id, search.study)
    search.tables.add("last", seconds(1.0, 1.0, 9.0))
    return search, search.run()


def test_a_policy_that_adapts_beats_every_single_configuration(finished):
    search, finding = finished

    winner = search.history.trials[finding.winner]
    assert winner.config == Config({"n": 1, "big.n": 2})
    assert winner.score.value == pytest.approx(1.0)
    assert finding.against_seed.ratio == pytest.approx(0.5)


def test_every_launch_is_one_in_every_context_that_is_not_held_out(finished):
    names = [name for name, _ in finished[0].tables.launches]
    searching = names[: names.index("later")]

    assert searching == ["example", "big"] * (len(searching) // 2)


def test_held_out_contexts_are_launched_last_and_in_rounds(finished):
    search, finding = finished
    launches = search.tables.launches
    at_the_end = launches[[name for name, _ in launches].index("later") :]

    assert [name for name, _ in at_the_end] == ["later", "last"] * 8
    repeats = search.store.repeats(search.study_id)
    purposes = [repeat.purpose for repeat in repeats]
    assert purposes == [Purpose.CONFIRM] * 8 + [Purpose.HELD_OUT] * 8
    assert {repeat.ordinal for repeat in repeats[-8:]} == {0, finding.winner}


def test_the_report_tells_each_context_and_the_mean_of_those_held_out(finished):
    search, finding = finished

    ratios = {found.name: found.against_seed.ratio for found in finding.contexts}
    assert ratios == {
        "example": pytest.approx(0.5),
        "big": pytest.approx(0.5),
        "later": pytest.approx(0.25),
        "last": pytest.approx(1.0),
        "the mean of all held out": pytest.approx(0.5),
    }
    lines = dict(report_lines(finding, StudyRecord.of(search.study_id, search.store), ""))
    assert lines["against the seed in big"].startswith(
        "2.00x better (95 % interval 2.00x to 2.00x, 4 interleaved"
    )
    assert lines["against the seed in later (held out)"].startswith("4.00x better")
    assert lines["against the seed in last (held out)"].startswith("no difference in practice")


def test_a_trial_tells_each_context_and_its_ratio_to_the_seed(finished, cclsearch):
    search, _ = finished

    shown = cclsearch("trial", "show", "1", "--store", search.root)
    facts = json.loads(cclsearch("trial", "show", "1", "--json", "--store", search.root).out)

    assert "in context example: 1 s, 0.500 times the seed's" in shown.out
    assert "in context big: 1 s, 0.500 times the seed's" in shown.out
    assert "contexts/big/rank0.log" in shown.out
    assert [one["ratio_to_seed"] for one in facts["contexts"]] == [0.5, 0.5]


def test_a_search_that_was_killed_goes_on_with_what_was_held_out(held_out):
    search = held_out(ADAPTIVE)
    search.tables.killed_at = 4 + 16 + 5
    with pytest.raises(KeyboardInterrupt):
        search.run()
    kept, led = search.store.repeats(search.study_id), study_leader(search.row, search.store)
    search.tables.killed_at = None

    finding = search.run()

    repeats = search.store.repeats(search.study_id)
    assert repeats[: len(kept)] == kept
    assert sum(repeat.purpose is Purpose.HELD_OUT for repeat in repeats) == 8
    assert finding.contexts[-1].against_seed.round_count == 4
    assert study_leader(search.row, search.store) == led


def test_without_launches_left_the_report_says_so(held_out):
    search = held_out(ADAPTIVE)
    search.study = replace(search.study, budget=replace(search.study.budget, launches=10))

    finding = search.run()

    lines = dict(report_lines(finding, StudyRecord.of(search.study_id, search.store), ""))
    assert (
        lines["against the seed in later (held out)"]
        == "not compared, there were no launches left for it"
    )


def test_offline_strategies_try_what_is_feasible_everywhere(searched, context, study_with):
    study = study_with(context("big", choices=(0, 2)))
    search = searched(study, {"example": seconds(2.0, 9.0, 1.0), "big": seconds(2.0, 9.0, 1.0)})

    finding = search.run()

    assert [trial.config["n"] for trial in search.history] == [0, 2]
    assert finding.stop_reason == "every feasible configuration was tried"


@pytest.mark.parametrize("held_out", [True, False])
def test_a_policy_that_is_invalid_in_any_context_is_not_launched(
    searched, context, study_with, held_out
):
    study = study_with(context("big", held_out=held_out, choices=(0, 1), global_batch=32))
    tables = {"example": seconds(2.0, 1.0, 4.0), "big": seconds(2.0, 1.0)}
    search = searched(study, tables, proposer=lambda _: Scripted((ADAPTIVE,)))

    search.run()

    failed = search.history.trials[1].outcome
    assert failed.kind is FailureKind.INVALID_CONFIG
    assert failed.message == "in context big: knob n is 2 (int), not one of [0, 1]"
    assert {n for _, n in search.tables.launches} == {0}


RAISES = ADAPTIVE.replace(
    '2 if workload["global_batch"] > 16 else 1', "16 // (32 - workload['global_batch'])"
)


@pytest.mark.parametrize(
    ("sources", "kind", "words"),
    [
        ((RAISES,), FailureKind.POLICY_ERROR, "in context big: line 3: ZeroDivisionError"),
        (
            (ADAPTIVE, ADAPTIVE.replace("> 16", ">= 17")),
            FailureKind.DUPLICATE,
            "same configuration as trial 1",
        ),
    ],
    ids=["raises in one", "same answers everywhere"],
)
def test_a_policy_is_judged_by_its_answers_in_all_contexts(two, sources, kind, words):
    search = two(*sources)

    search.run()

    failed = search.history.trials[-1].outcome
    assert failed.kind is kind
    assert failed.message.startswith(words)


def test_a_failure_in_one_context_is_the_trials(two):
    search = two(
        ADAPTIVE, tables={"big": {0: Takes(step_time_s=2.0), 2: Fails(kind=FailureKind.CRASH)}}
    )

    finding = search.run()

    assert finding.winner == 0
    assert search.history.trials[1].outcome.message == "in context big: as the table says"


def test_a_seed_that_wins_is_compared_with_nothing(searched, context, study_with):
    study = study_with(context("later", held_out=True))
    search = searched(study, {"example": seconds(1.0, 2.0, 3.0), "later": seconds(1.0, 2.0, 3.0)})

    finding = search.run()

    assert (finding.winner, finding.contexts) == (0, ())
    assert {name for name, _ in search.tables.launches} == {"example"}


SECONDS = st.floats(1e-6, 1e6)
LAUNCHED = Config({"n": 1, "big.n": 2})


def took(step_time_s: float, **fields: object) -> Measured:
    """A measured outcome of a launch that took so long."""
    return Takes(step_time_s=step_time_s, **fields).outcome(testing.study(), 0, Random(0))


@pytest.fixture
def launched(tmp_path, context, study_with):
    """Launches a joined configuration in contexts that end like this."""

    def launch(own, big):
        study = study_with(context("big", global_batch=32))
        tables = {"example": {1: own}, "big": {2: big}}
        return ContextEvaluator(_Tables(tables)).evaluate(study, LAUNCHED, tmp_path)

    return launch


class _Tables:
    """Ends a launch as the table of its context says."""

    def __init__(self, endings):
        self._endings = endings

    def evaluate(self, study, config, workdir):
        (workdir / "rank0.log").write_text(study.name, encoding="utf-8")
        return self._endings[study.name][config["n"]].outcome(study, 0, Random(0))

    def evaluate_together(self, *_asked):
        return ()


@given(ours=st.lists(SECONDS, min_size=2, max_size=4), theirs=st.lists(SECONDS, min_size=4))
def test_the_ratio_of_two_trials_is_the_geometric_mean_of_their_ratios(ours, theirs):
    names = "abcd"[: len(ours)]
    mine = mean_outcome([(n, testing.measured(s)) for n, s in zip(names, ours, strict=True)])
    other = mean_outcome([(n, testing.measured(s)) for n, s in zip(names, theirs, strict=False)])

    ratio = mine.metric("step_time") / other.metric("step_time")

    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=False)]
    assert ratio == pytest.approx(math.exp(sum(logs) / len(logs)))


def test_everything_that_was_measured_is_kept_in_a_folder_for_each_other_context(
    launched, tmp_path
):
    outcome = launched(Takes(step_time_s=1.0), Takes(step_time_s=4.0))

    assert outcome.metric("step_time") == pytest.approx(2.0)
    assert [one.name for one in outcome.contexts] == ["example", "big"]
    assert outcome_in(outcome, "big").metric("step_time") == 4.0
    assert outcome.measurement == outcome_in(outcome, "example").measurement
    tokens = [measurement.tokens_per_step for measurement in outcome.measurements]
    assert tokens == [16 * 128, 32 * 128]
    assert (tmp_path / "rank0.log").read_text() == "example"
    assert (tmp_path / "contexts" / "big" / "rank0.log").read_text() == "big"


def test_a_failure_names_its_context_and_keeps_what_was_measured_before(launched):
    outcome = launched(Takes(step_time_s=1.0), Fails(kind=FailureKind.OUT_OF_MEMORY))
    first = launched(Fails(kind=FailureKind.CRASH), Takes(step_time_s=1.0))

    assert str(outcome) == "out_of_memory: in context big: as the table says"
    assert outcome_in(outcome, "example").metric("step_time") == 1.0
    assert str(outcome_in(outcome, "big")) == "out_of_memory: as the table says"
    assert [one.name for one in first.contexts] == ["example"]  # nothing more is launched


def test_a_metric_without_value_somewhere_has_no_mean_and_says_where():
    one, other = took(1.0), took(2.0)
    (time,) = [metric for metric in other.metrics if metric.name == "step_time"]
    zero = replace(other, metrics=(replace(time, value=0.0),), absent={"mfu": "no peak is known"})

    mean = mean_outcome([("example", one), ("big", zero)])

    assert mean.metric("step_time") is None
    assert mean.absent["step_time"].startswith("0 in context big")
    assert mean.absent["mfu"].startswith("in context example: ")


def test_other_work_in_any_context_is_a_failure(context, study_with):
    study = study_with(context("big"))
    first = mean_outcome([("example", took(1.0)), ("big", took(1.0))])
    wrong = mean_outcome([("example", took(1.0)), ("big", took(0.1, losses=(4.0, 9.0)))])

    difference = other_work_anywhere(wrong, first, study)

    assert other_work_anywhere(first, first, study) is None
    assert difference.kind is FailureKind.INVALID_CONFIG
    assert difference.message.startswith("in context big: computed something else")
    assert len(difference.contexts) == 2


def test_a_limit_has_to_hold_in_every_context(context, study_with):
    study = study_with(
        context("big"), limits=("step_time < 3.5 s", "step_time < 1.2 * step_time@seed")
    )
    seed = mean_outcome([("example", took(1.0)), ("big", took(3.0))])
    scoring = scoring_of(study).against([seed])
    outcome = mean_outcome([("example", took(0.1)), ("big", took(4.0))])

    broken = scoring.of(outcome).broken

    assert outcome.metric("step_time") < 1
    assert len(broken) == 2
    assert all(words.startswith("in context big: ") for words in broken)
    assert scoring.of(seed).broken == ()


def test_launches_in_several_contexts_do_not_take_turns(context, study_with):
    evaluator = ContextEvaluator(_Tables({}))

    assert evaluator.evaluate_together(study_with(), [], [], 0) == ()
    with pytest.raises(ValueError, match="cannot be interleaved"):
        evaluator.evaluate_together(study_with(context("big")), [], [], 0)


CONFIGS = st.dictionaries(st.sampled_from(["n", "tp", "n_2"]), st.integers(), max_size=3).map(
    Config
)


@given(own=CONFIGS, big=CONFIGS, bigger=CONFIGS)
def test_a_joined_configuration_comes_apart_into_what_it_was_made_of(own, big, bigger):
    whole = join_contexts(own, {"big": big, "bigger": bigger})

    assert own_part(whole) == own
    assert part_of(whole, "big") == big
    assert part_of(whole, "bigger") == bigger


def test_feasible_is_what_every_context_seconds(context, study_with):
    space = space_of(study_with(context("big", choices=(1, 2, 3)), context("small", choices=(2,))))
    later = space_of(study_with(context("later", held_out=True, choices=(1, 2, 3))))

    assert space.feasible == (Config({"n": 2, "big.n": 2, "small.n": 2}),)
    assert space.answer(space.feasible[0]) == space.settings(space.feasible[0]) == {"n": 2}
    assert later.feasible == (Config({"n": 1}), Config({"n": 2}))
    assert not space.is_listable  # policies can do more than what is the same everywhere
    assert space_of(study_with()).is_listable


def test_contexts_that_share_nothing_say_what_could_do(context, study_with):
    space = space_of(study_with(context("big", choices=(7,))))

    assert space.feasible == ()
    (why,) = space.obstacles()
    assert "--strategy llm" in why


def test_a_knob_that_looks_joined_is_refused(context, study_with):
    study = study_with(context("big"))
    (knob,) = study.space.dimensions
    dotted = replace(study.space, dimensions=(replace(knob, name="big.n"),))

    with pytest.raises(StudyError, match="rename it"):
        space_of(replace(study, space=dotted))


@pytest.mark.parametrize("name", ["", "a.b", "../up", "a b", "-x"])
def test_names_of_contexts_are_fit_for_folders_and_knobs(context, name):
    with pytest.raises(StudyError, match="letters, digits"):
        context(name)


@pytest.mark.parametrize("names", [("big", "big"), ("example",)])
def test_every_context_has_a_name_of_its_own(context, study_with, names):
    with pytest.raises(StudyError, match="names two contexts, or one and the study"):
        study_with(*(context(name) for name in names))


TINY = Path(__file__).parents[2] / "data" / "tiny_study.toml"
SHARDS = """
def generate_config(workload, environment):
    return {"dp_shard": environment["world_size"], "micro_batch": 4}
"""
SPACE = "[space.dp_shard]\n[space.micro_batch]\n"


@pytest.fixture
def file(tmp_path):
    """Writes the tiny study with more at its end."""

    def write(more: str) -> Path:
        path = tmp_path / "study.toml"
        path.write_text(f"{TINY.read_text()}\n{more}\n")
        return path

    return write


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "shards.py"
    path.write_text(SHARDS)
    return path


def test_a_context_is_laid_over_the_studys_own(file):
    study = read_study_file(
        file(
            '[[context]]\nname = "big"\nworkload = { global_batch = 32 }\n'
            '[[context]]\nname = "llama"\nheld_out = true\n'
            '[context.workload]\nmodel = "debug"\nlayer_count = 3\n'
            "[context.environment]\nworld_size = 8\n"
        ),
        testing.study(),
    )

    big, llama = study.contexts
    assert (big.held_out, big.workload.global_batch, big.workload.layer_count) == (False, 32, 2)
    assert big.environment == study.environment
    assert (llama.held_out, llama.workload.layer_count, llama.workload.global_batch) == (True, 3, 8)
    assert llama.workload.hidden_size != study.workload.hidden_size
    assert (llama.environment.world_size, llama.environment.ranks_per_node) == (8, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[context]\nname = 'a'", "[context] must be written [[context]]"),
        ("[[context]]\nname = 'a'\nheldout = true", "did you mean 'held_out'?"),
        ("[[context]]\nheld_out = true", "needs name"),
        (
            "[[context]]\nname = 'a'\nworkload = { global_bach = 3 }",
            "[context.0.workload] unknown key 'global_bach'; did you mean 'global_batch'?",
        ),
        (
            "[[context]]\nname = 'a'\nenvironment = { scale_up = { bandwith_bytes_per_s = 3.0 } }",
            "did you mean 'bandwidth_bytes_per_s'?",
        ),
        ("[[context]]\nname = 'a'\nworkload = 3", "[context.0.workload] must be a table"),
        ("[[context]]\nname = 'tiny'", "names two contexts, or one and the study"),
    ],
)
def test_a_context_that_is_wrong_is_told_in_the_words_of_the_file(file, text, words):
    with pytest.raises(StudyError) as refused:
        read_study_file(file(text), testing.study())

    assert words in str(refused.value)


def test_a_policy_is_checked_in_every_context_and_over_a_grid(cclsearch, file, policy):
    study = file(
        f'{SPACE}[[context]]\nname = "odd"\nheld_out = true\nworkload = {{ global_batch = 6 }}'
    )

    ended = cclsearch("policy", "check", policy, "-c", study, "--vary", "world_size=1,2")

    assert ended.code == 2
    assert ended.out.splitlines() == [
        "tiny: valid: dp_shard=2 micro_batch=4",
        "odd (held out): invalid_config: knob micro_batch is 4 (int), not one of [1, 2, 3, 6]",
        "world_size=1: valid: dp_shard=1 micro_batch=4",
        "world_size=2: valid: dp_shard=2 micro_batch=4",
    ]


def test_a_checked_policy_is_told_as_json(cclsearch, file, policy):
    ended = cclsearch("policy", "check", policy, "-c", file(SPACE), "--json")

    assert ended.code == 0
    assert json.loads(ended.out) == [
        {
            "context": "tiny",
            "held_out": False,
            "config": {"dp_shard": 2, "micro_batch": 4},
            "fault": None,
        }
    ]


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ("global_batch", "lists no values; write global_batch=16,32"),
        ("global_bach=3", "did you mean 'global_batch'?"),
        ("global_batch=x", "--vary global_batch: "),
        ("global_batch=0", "it must be at least 1"),
    ],
)
def test_values_that_cannot_be_are_one_line_errors(cclsearch, file, policy, vary, words):
    ended = cclsearch("policy", "check", policy, "-c", file(SPACE), "--vary", vary)

    assert ended.code == 2
    assert words in ended.err
    assert ended.err.startswith("error: ")


def test_a_context_in_which_nothing_is_possible_is_a_fault_of_its_own(cclsearch, file, policy):
    study = file(f"{SPACE}[[context]]\nname = 'big'\nenvironment = {{ world_size = 3 }}")

    ended = cclsearch("policy", "check", policy, "-c", study)

    assert ended.code == 2
    assert ended.out.splitlines()[1].startswith("big: invalid_config: ")


@pytest.mark.slow
def test_a_real_search_for_two_contexts_tells_both(cclsearch, file, policy, tmp_path):
    study = file(f"{SPACE}[[context]]\nname = 'long'\nworkload = {{ sequence_length = 64 }}\n")
    text = study.read_text().replace("self_test_rounds = 1", "self_test_rounds = 0")
    text = text.replace("confirm_rounds = 2", "confirm_rounds = 0")
    study.write_text(text.replace("race_rounds = 2", "race_rounds = 0"))
    store = tmp_path / "store"

    ended = cclsearch(
        *("run", "-c", study, "--strategy", "grid", "--seed-policy", policy),
        *("--trials", 1, "--store", store),
    )
    shown = json.loads(cclsearch("trial", "show", 0, "--json", "--store", store).out)
    best = cclsearch("best", "--context", "long", "--format", "json", "--store", store)

    assert ended.code == 0, ended.err
    assert [one["name"] for one in shown["contexts"]] == ["tiny", "long"]
    tokens = [
        one["outcome"]["measurement"]["tokens_per_step"] for one in shown["outcome"]["contexts"]
    ]
    assert tokens == [8 * 32, 8 * 64]
    assert "contexts/long/rank1_trace.json" in shown["files"]
    assert json.loads(best.out).keys() == {"dp_shard", "micro_batch"}
    assert cclsearch("trace", "breakdown", "trial:0", "--store", store).code == 0
