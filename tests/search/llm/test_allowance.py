"""Tokens and money of a model: what they cost, where they end, and what is said about them."""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.errors import StudyError
from records.llm_exchange import LlmExchange, TokenUsage
from records.store.rows import PendingTrial
from records.store.store import Store
from records.study import Budget, Llm, Price
from search.llm.client import Allowance, LlmClient
from search.llm.messages import Answer, Prompt
from search.llm.tools import Draft, RetryAction
from search.loop.budget import price_of, with_price
from search.settings import LlmSettings, Secret
from tests.support import records as testing
from tests.support.evaluator import Takes
from tests.support.search import CODE, PROMPT, ScriptedReply, connected, message, submission

PRICE = Price(input=1.0, output=2.0, cache_write=2.0)
COUNTS = st.integers(0, 10**6)


class Answering:
    """A transport that always gets the same reply."""

    def __init__(self, reply: ScriptedReply) -> None:
        self.text = json.dumps(reply.body)
        self.sent_count = 0

    def send(self, body: Mapping[str, object]) -> tuple[Answer, ...]:  # noqa: ARG002 - the port
        self.sent_count += 1
        return (Answer(text=self.text, status=200),)

    def count_tokens(self, body: Mapping[str, object]) -> None:
        """Have no count."""


def client(transport: Answering, output_tokens: int) -> LlmClient:
    settings = LlmSettings(api_key=Secret("sk-test"), max_output_tokens=output_tokens)
    return LlmClient(settings, transport)


def exchange(result: str, usage: TokenUsage, model: str = "claude-opus-5-5") -> LlmExchange:
    return LlmExchange(
        model=model,
        request="[]",
        reply="[]",
        result=result,
        usage=usage,
        latency_s=0.5,
        request_count=2,
    )


@pytest.mark.parametrize(
    "budget", [Budget(max_tokens=10_000), Budget(max_cost_usd=0.02)], ids=["tokens", "money"]
)
def test_a_turn_is_asked_for_while_the_largest_so_far_would_still_fit(budget: Budget):
    transport = Answering(submission(CODE))
    largest = TokenUsage(output_tokens=4000)
    (first, _), (refused, exchange) = (
        client(transport, 64_000).ask(
            PROMPT,
            lambda draft: draft,
            allowance=Allowance(budget, "m", PRICE, lambda more=more: [largest, more]),
        )
        for more in (TokenUsage(output_tokens=2000), TokenUsage(output_tokens=2001))
    )

    assert isinstance(first, Draft)
    assert refused.action is RetryAction.USER
    assert "resume with a higher --max-" in refused.words
    assert exchange.request_count == 0
    assert transport.sent_count == 1


def test_a_limit_far_above_what_a_turn_costs_lets_one_begin():
    usage = TokenUsage(input_tokens=3000, output_tokens=500)
    for turns in ([], [usage] * 7):
        price = price_of("claude-opus-5-5")
        allowance = Allowance(Budget(max_cost_usd=0.2), "claude-opus-5-5", price, lambda t=turns: t)

        assert allowance.refusal(TokenUsage(), lambda: 8000) is None


@pytest.mark.parametrize(("counts", "asked_count"), [(True, 1), (False, 0)])
def test_the_provider_counts_the_first_request_where_it_can(counts: bool, asked_count: int):
    task = "x" * 40_000  # 10,000 tokens by the server's count, 20,000 by the estimate
    prompt = Prompt(system="You choose.", task=task, turn="Trial 3.")
    allowance = Allowance(Budget(max_tokens=15_000), "m", None, list)
    with connected(lambda _: submission(CODE), server={"counts": counts}) as (server, client):
        for _ in range(2):
            client.ask(prompt, lambda draft: draft, allowance=allowance)

    assert len(server.requests) == 2 * asked_count
    assert len(server.counted) == 1 + asked_count
    assert "max_tokens" not in server.counted[0].body


def test_what_a_conversation_used_itself_counts_against_the_limit():
    prose = message({"type": "text", "text": "prose"}, usage={"output_tokens": 3000})
    transport = Answering(prose)
    allowance = Allowance(Budget(max_tokens=5000), "m", None, list)
    found, _ = client(transport, 2000).ask(PROMPT, lambda draft: draft, allowance=allowance)

    assert found.words.startswith("3000 of 5000 tokens for the model are used")
    assert transport.sent_count == 1


def test_a_limit_of_money_needs_a_price():
    with pytest.raises(StudyError, match="needs the price of 'local'") as raised:
        Allowance(Budget(max_cost_usd=1.0), "local", None, list)

    assert str(raised.value).endswith("or limit tokens with --max-tokens")
    Allowance(Budget(max_tokens=1000), "local", None, list)


@given(
    st.lists(st.builds(TokenUsage, input_tokens=COUNTS, output_tokens=COUNTS), max_size=4), COUNTS
)
def test_what_is_allowed_stays_within_the_limit_unless_a_turn_is_the_largest(
    turns: list[TokenUsage], size: int
):
    budget = Budget(max_tokens=1_500_000, max_cost_usd=2.0)
    allowance = Allowance(budget, "m", PRICE, lambda: turns)
    if allowance.refusal(TokenUsage(), lambda: size) is None:
        for next_turn in turns:
            after = sum(turns, next_turn)
            assert after.tokens <= 1_500_000
            assert PRICE.cost_usd(after) <= 2.0


def test_every_kind_of_token_has_its_price():
    usage = TokenUsage(
        input_tokens=10, output_tokens=10, cache_read_tokens=100, cache_write_tokens=1000
    )

    assert usage.tokens == 1120
    price = Price(input=1e5, output=2e5, cache_read=1e4, cache_write=1e3)
    assert price.cost_usd(usage) == pytest.approx(1 + 2 + 1 + 1)
    assert Price(input=1e5, output=2e5).cost_usd(usage) == pytest.approx(1 + 2 + 10 + 100)


def test_the_table_knows_a_model_by_any_release_and_no_other():
    assert price_of("claude-opus-4-5-20251101") == price_of("claude-opus-4-5")
    assert price_of(Llm().model) is not None
    assert price_of("llama-3-70b") is None


def test_the_price_of_a_study_comes_before_the_known_one():
    assert with_price(Llm(price=PRICE)).price == PRICE
    assert with_price(Llm()).price == price_of(Llm().model)


def test_the_store_sums_what_each_model_used(tmp_path):
    store = Store(tmp_path)
    store.create("s", testing.study(), "test")
    asked = [
        exchange("submitted", TokenUsage(input_tokens=1, output_tokens=10)),
        exchange("submitted", TokenUsage(input_tokens=2, cache_read_tokens=5), model="other"),
        exchange("refused", TokenUsage(input_tokens=4, cache_write_tokens=7)),
    ]
    for ordinal, each in enumerate(asked):
        policy = testing.trial(ordinal, 1.0).policy
        intent = PendingTrial(
            ordinal=ordinal, policy=policy, started_at=testing.START, exchange=None
        )
        store.begin("s", intent, each)
    first, other = store.model_uses("s")
    nothing = store.model_uses("t")
    turns = store.turn_usages("s")
    store.close()

    assert (first.model, first.turn_count, first.policy_count) == ("claude-opus-5-5", 2, 1)
    assert first.request_count == 4
    assert first.usage == TokenUsage(input_tokens=5, output_tokens=10, cache_write_tokens=7)
    assert first.last_result == "refused"
    assert (other.model, other.usage.tokens, other.last_result) == ("other", 7, "submitted")
    assert nothing == ()
    assert turns == tuple(each.usage for each in asked)


def test_the_report_tells_tokens_money_and_why_the_last_turn_failed(cclsearch, tabular):
    study = tabular({0: Takes(step_time_s=0.5), 1: Takes(step_time_s=0.5)})
    study.run()
    policy = study.history.trials[0].policy
    intent = PendingTrial(ordinal=9, policy=policy, started_at=testing.START, exchange=None)
    usage = TokenUsage(input_tokens=500_000, output_tokens=50_000)
    study.store.begin(study.study_id, intent, exchange("the key was rejected", usage))
    told = cclsearch("show", "--store", study.root).out
    facts = json.loads(cclsearch("show", "--store", study.root, "--json").out)

    (line,) = [line for line in told.splitlines() if line.startswith("model: ")]
    assert "policies in 0 of 1 turn, 2 requests; 550000 tokens (500000 in" in line
    assert "3 USD; the last turn: the key was rejected" in line
    (use,) = facts["models"]
    assert use["cost_usd"] == pytest.approx(3.0)
    assert use["output_tokens"] == 50_000


def test_money_cannot_be_limited_for_a_model_without_a_price(cclsearch, monkeypatch, tmp_path):
    (tmp_path / "study.toml").write_text('[llm]\nmodel = "local"\n')
    arguments = ("run", "-c", tmp_path / "study.toml", "--strategy", "llm", "--max-cost", "1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-0123456789")
    ended = cclsearch(*arguments, "--store", tmp_path / "store")

    assert ended.code == 2
    assert "set it in the study file as [llm] price" in ended.err
    assert "\n" not in ended.err.strip()


def test_run_asks_the_model_that_the_option_names(cclsearch, monkeypatch, tmp_path):
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "none")
    arguments = ("run", "--strategy", "llm", "--model", "local", "--max-cost", "1")
    ended = cclsearch(*arguments, "--store", tmp_path / "store")

    assert ended.code == 2
    assert "needs the price of 'local'" in ended.err


def test_resume_records_the_model_that_the_option_names(cclsearch, tmp_path):
    with closing(Store(tmp_path / "store")) as store:
        store.create("s", replace(testing.study(), strategy="llm", llm=with_price(Llm())), "test")
        ended = cclsearch("resume", "s", "--model", "local", "--store", tmp_path / "store")
        llm = store.find("s").study.llm

    assert ended.code == 2  # nothing is launched without a key
    assert (llm.model, llm.price) == ("local", None)


def test_a_study_file_says_a_price(cclsearch, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text("[llm]\nprice = { input = 1.0, outputs = 2.0 }\n")
    ended = cclsearch("space", "size", "-c", path)

    assert "[llm.price] unknown key 'outputs'; did you mean 'output'?" in ended.err
