"""A service as tools for a language model: asked by the SDK's own client, over standard input."""

import subprocess
import sys

import anyio
import pytest

from search.client.client import Client
from tests.search.service.conftest import FINISHED

STUDY = {"study_id": FINISHED}
NO_SDK = (
    "import sys, importlib.util as util\nfind = util.find_spec\n"
    "util.find_spec = lambda name, *rest: None if name == 'mcp' else find(name, *rest)\n"
    "from search.cli.main import main\nsys.argv = ['cclsearch', 'mcp']\nmain()"
)


def asking(served):
    """Calls a tool with the token of a role, in this process; gives what a model is told."""
    # Imported here: it takes a second, which everybody who collects this file would pay.
    from mcp import Client as Model

    from search.client.mcp_server import server_over

    def call(name, role="submit", **arguments):
        async def calling():
            async with Model(server_over(client)) as model:
                return await model.call_tool(name, arguments)

        with Client(served.url, served.tokens[role], patience_s=0) as client:
            return anyio.run(calling)

    return call


@pytest.fixture
def ask(shared):
    return asking(shared)


def test_a_program_finds_the_tools_and_reads_a_study_over_standard_input(shared):
    from mcp import Client as Model
    from mcp import StdioServerParameters

    program = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "search", "mcp", "--url", shared.url],
        env={"CCLSEARCH_TOKEN": shared.tokens["read"]},
    )

    async def working():
        async with Model(program) as model:
            tools = {tool.name: tool for tool in (await model.list_tools()).tools}
            study = await model.call_tool("get_study", STUDY)
            return tools, study.structured_content, model.server_info.name

    tools, study, name = anyio.run(working)

    assert name == "cclsearch"
    reads = {n for n, tool in tools.items() if tool.annotations.read_only_hint}
    assert (len(reads), set(tools) - reads) == (
        9,
        {"submit_study", "race_trials", "label_study"},
    )
    assert all(tool.description and tool.output_schema for tool in tools.values())
    assert study["best"]["value"] == 0.25


@pytest.mark.parametrize(
    ("tool", "arguments", "pick", "expected"),
    [
        (
            "list_studies",
            {"limit": 1, "offset": 2},
            lambda found: (found["items"][0]["id"], found["total"]),
            (FINISHED, 3),
        ),
        (
            "list_trials",
            {**STUDY, "limit": 2},
            lambda found: [trial["score"]["value"] for trial in found["items"]],
            [0.25, 0.4],
        ),
        (
            "get_trial",
            {**STUDY, "ordinal": 0},
            lambda found: (found["metrics"], found["units"], found["files"], "outcome" in found),
            ({"step_time": 0.5}, {"step_time": "s"}, ["logs/rank0.log"], False),
        ),
        (
            "compare_trials",
            {"a": f"{FINISHED}:0", "b": FINISHED},
            lambda found: (found["comparison"]["rows"][0]["verdict"], found["settings"][0]),
            ("undecided", {"knob": "pp", "a": 1, "b": 1, "differs": False}),
        ),
        (  # one launch ranks nothing
            "leaderboard",
            {},
            lambda found: (found["total"], found["items"][0]["submissions"][0]["rank"]),
            (1, None),
        ),
    ],
)
def test_a_tool_reads_what_the_service_has(ask, tool, arguments, pick, expected):
    assert pick(ask(tool, **arguments).structured_content) == expected


def test_a_policy_is_told_with_what_changed(ask):
    first, second, *_ = ask("list_policies", **STUDY).structured_content["items"]
    policy = ask("get_policy", **STUDY, digest=second["digest"]).structured_content

    assert policy["parent"] == first["digest"]
    assert "+print(1)" in policy["diff"]


def test_a_study_is_submitted_for_an_environment_that_is_offered(served):
    ask = asking(served)
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

    assert (entered["status"], study["most_trials"]) == ("queued", 2)


def test_a_study_is_labelled(served):
    labels = asking(served)("label_study", **STUDY, tags=["nightly"]).structured_content

    assert (labels["tags"], labels["archived"]) == (["nightly"], False)


@pytest.mark.parametrize(
    ("tool", "role", "arguments", "words"),
    [
        ("get_study", "read", {"study_id": "2027"}, "no study '2027'"),
        ("compare_trials", "read", {"a": FINISHED, "b": f"{FINISHED}:99"}, "has no trial 99"),
        ("get_trial", "read", {**STUDY, "ordinal": -1}, "greater than or equal to 0"),
        ("submit_study", "submit", {"environment": "moon"}, "environment 'moon' is not offered"),
        ("submit_study", "read", {}, "role submit"),
        ("race_trials", "submit", {**STUDY, "a": 0, "b": 1}, "was not submitted here"),
    ],
)
def test_what_is_refused_is_told_in_our_words(ask, tool, role, arguments, words):
    result = ask(tool, role, **arguments)

    assert result.is_error
    assert words in result.content[0].text


def test_without_the_sdk_the_command_says_what_to_install(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", NO_SDK], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        "error: this command needs the MCP SDK: pip install 'cclsearch[mcp]'"
    ]
