"""A service as tools for a language model: asked by the SDK's own client, over standard input."""

import subprocess
import sys

import anyio
import pytest
from mcp import Client as Model
from mcp import StdioServerParameters

from search.client.client import Client
from search.client.mcp_server import server_over
from tests.search.service.conftest import FINISHED

READS = {
    "compare_trials",
    "leaderboard",
    "get_policy",
    "get_study",
    "get_trial",
    "list_environments",
    "list_policies",
    "list_studies",
    "list_trials",
}


def started(url, token):
    """How a program starts the command."""
    return StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "search", "mcp", "--url", url],
        env={"CCLSEARCH_TOKEN": token},
    )


@pytest.fixture
def ask(served):
    """Calls a tool with the token of a role, in this process; gives what a model is told."""

    def call(name, role="submit", **arguments):
        async def calling():
            async with Model(server_over(client)) as model:
                return await model.call_tool(name, arguments)

        with Client(served.url, served.tokens[role], patience_s=0) as client:
            return anyio.run(calling)

    return call


def test_a_program_finds_the_tools_and_reads_a_study_over_standard_input(served):
    async def working():
        async with Model(started(served.url, served.tokens["read"])) as model:
            tools = {tool.name: tool for tool in (await model.list_tools()).tools}
            study = await model.call_tool("get_study", {"study_id": FINISHED})
            return tools, study.structured_content, model.server_info.name

    tools, study, name = anyio.run(working)

    assert name == "cclsearch"
    assert {n for n, tool in tools.items() if tool.annotations.read_only_hint} == READS
    assert set(tools) - READS == {"submit_study"}
    assert all(tool.description and tool.output_schema for tool in tools.values())
    assert study["best"]["value"] == 0.25


def test_studies_are_listed(ask):
    found = ask("list_studies", limit=1, offset=2).structured_content

    assert [study["id"] for study in found["items"]] == [FINISHED]
    assert found["total"] == 3


def test_trials_come_best_first(ask):
    found = ask("list_trials", study_id=FINISHED, limit=2).structured_content

    assert [trial["score"]["value"] for trial in found["items"]] == [0.25, 0.4]


def test_a_trial_is_told_without_its_samples(ask):
    trial = ask("get_trial", study_id=FINISHED, ordinal=0).structured_content

    assert trial["metrics"]["step_time"] == 0.5
    assert trial["units"]["step_time"] == "s"
    assert trial["files"] == ["logs/rank0.log"]
    assert "outcome" not in trial


def test_a_policy_is_told_with_what_changed(ask):
    first, second, *_ = ask("list_policies", study_id=FINISHED).structured_content["items"]

    policy = ask("get_policy", study_id=FINISHED, digest=second["digest"]).structured_content

    assert policy["parent"] == first["digest"]
    assert "+print(1)" in policy["diff"]


def test_two_trials_are_compared_with_a_verdict(ask):
    found = ask("compare_trials", a=f"{FINISHED}:0", b=FINISHED).structured_content

    (row,) = found["comparison"]["rows"]
    assert row["verdict"] == "undecided"
    assert {"knob": "pp", "a": 1, "b": 1, "differs": False} in found["settings"]


def test_the_leaderboard_lists_the_same_work_without_ranking_single_launches(ask):
    found = ask("leaderboard").structured_content

    assert found["total"] == len(found["items"]) == 1
    assert found["items"][0]["submissions"][0]["rank"] is None  # one launch ranks nothing


def test_a_study_is_submitted_for_an_environment_that_is_offered(ask):
    (environment,) = ask("list_environments").structured_content["items"]

    entered = ask(
        "submit_study",
        environment=environment["name"],
        objectives=["step_time"],
        trials=2,
        strategy="offline",
        choices={"activation_checkpointing": ["none"]},
    ).structured_content

    study = ask("get_study", study_id=entered["id"]).structured_content
    assert entered["status"] == "queued"
    assert study["most_trials"] == 2


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("get_study", {"study_id": "2027"}, "no study '2027'"),
        ("compare_trials", {"a": FINISHED, "b": f"{FINISHED}:99"}, "has no trial 99"),
        ("submit_study", {"environment": "moon"}, "environment 'moon' is not offered"),
        ("get_trial", {"study_id": FINISHED, "ordinal": -1}, "greater than or equal to 0"),
    ],
)
def test_what_is_refused_is_told_in_our_words(ask, tool, arguments, words):
    result = ask(tool, **arguments)

    assert result.is_error
    assert words in result.content[0].text


def test_a_token_for_reading_submits_nothing(ask):
    result = ask("submit_study", role="read")

    assert result.is_error
    assert "role submit" in result.content[0].text


def test_without_the_sdk_the_command_says_what_to_install(tmp_path):
    program = (
        "import sys, importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'mcp' else find(name, *rest)\n"
        "from search.cli.main import main\nsys.argv = ['cclsearch', 'mcp']\nmain()"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        "error: this command needs the MCP SDK: pip install 'cclsearch[mcp]'"
    ]
