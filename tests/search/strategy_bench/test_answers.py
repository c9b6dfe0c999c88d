"""Searches of a landscape that ask a model: its answers are kept, and paid for once."""

from dataclasses import replace
from itertools import cycle

import pytest

from records.errors import StudyError
from records.study import Llm, Price
from search.strategy_bench.answers import Model
from search.strategy_bench.landscape import Ground
from search.strategy_bench.run import Terms, landscapes_of, run_searches
from tests.support.search import ScriptedMessagesServer, fault, submission

KEY = "sk-ant-test-0123456789abcdef"
PRICED = Llm(price=Price(input=1.0, output=1.0))


@pytest.fixture(scope="module")
def landscape():
    """One configuration is twice as fast as the others, so a search that has it soon ends."""
    (found,) = landscapes_of(["builtin-cpu"])
    measured = sorted((each for each in found.entries if each.samples), key=lambda e: e.samples)
    entries = [replace(measured[0], samples=(0.5,), estimate=None)]
    entries += [replace(each, samples=(1.0,), estimate=None) for each in measured[1:]]
    return replace(found, seed=entries[-1].config, entries=tuple(entries))


@pytest.fixture(scope="module")
def policies(landscape):
    """The source of a policy for each configuration, the fastest first."""
    ground = Ground(landscape)
    fastest = sorted(ground.truths, key=ground.excess)
    head = "def generate_config(workload, environment):\n"
    comment = "    # by a model\u2028\n"
    return [f"{head}{comment}    return {dict(c.values)!r}\n" for c in fastest]


@pytest.fixture(scope="module")
def ask(landscape):
    def search(answers, server=None, *, seed=0):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
                patch.delenv(name, raising=False)
            if server is not None:
                patch.setenv("ANTHROPIC_API_KEY", KEY)
                patch.setenv("ANTHROPIC_BASE_URL", server.url)
            model = Model(llm=PRICED, answers=answers)
            terms = Terms(seeds=(seed,), trial_count=40, model=model)
            (run,) = run_searches(landscape, "hybrid", terms)
        return replace(run, own_s=0.0)

    return search


@pytest.fixture(scope="module")
def asked(ask, policies, tmp_path_factory):
    """A search, the file of its answers, and how many requests it took."""
    answers = tmp_path_factory.mktemp("asked") / "said.jsonl"
    turns = cycle(policies)
    with ScriptedMessagesServer(lambda _: submission(next(turns))) as server:
        run = ask(answers, server)
    return run, answers, len(server.requests)


def test_a_model_finds_what_it_submits_and_the_search_says_what_it_cost(asked):
    run, answers, request_count = asked
    kept = answers.read_text()

    assert run.announced.excess < 0.05
    assert run.steps[1].excess < 0.05
    assert run.announced.tokens > 0
    assert run.announced.usd == pytest.approx(run.announced.tokens / 1e6)
    assert kept.count("\n") == request_count
    assert KEY not in kept


def test_what_was_answered_is_not_asked_again_and_needs_no_key(asked, ask):
    run, answers, _ = asked

    assert ask(answers) == run


def test_without_a_key_a_search_that_was_not_made_is_refused(asked, ask):
    _, answers, _ = asked

    with pytest.raises(StudyError, match="takes a key in ANTHROPIC_API_KEY"):
        ask(answers, seed=1)


def test_a_provider_that_fails_ends_the_benchmark_and_keeps_what_was_answered(
    ask, policies, tmp_path
):
    said = tmp_path / "said.jsonl"
    answers = [submission(policies[5]), fault(401, "no such account")]
    with (
        ScriptedMessagesServer(iter(answers)) as server,
        pytest.raises(StudyError, match=r"no answer: .*no such account.*; run it again to go on"),
    ):
        ask(said, server)

    assert len(said.read_text().splitlines()) == 1
    with pytest.raises(StudyError, match=r"said\.jsonl: a request .* export a key to ask for it"):
        ask(said)


@pytest.mark.parametrize(
    ("name", "why"), [("", "it is not a regular file"), ("no/said.jsonl", "No such file")]
)
def test_where_answers_cannot_be_kept_none_is_asked_for(name, why, ask, tmp_path):
    with (
        ScriptedMessagesServer(iter(())) as server,
        pytest.raises(StudyError, match=f"answers cannot be kept there: {why}"),
    ):
        ask(tmp_path / name, server)

    assert not server.requests


def test_a_file_of_something_else_is_refused_with_the_line(ask, tmp_path):
    said = tmp_path / "said.jsonl"
    said.write_text("{}\n")

    with pytest.raises(StudyError, match=r"said\.jsonl: line 1 is no answer of a model"):
        ask(said)
