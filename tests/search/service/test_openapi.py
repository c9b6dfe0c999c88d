"""Every route against its own description, with requests that fit it and requests that do not.

With ten times as many: `pytest --hypothesis-profile=thorough` of this file.
"""

import re
from contextlib import suppress

from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

STUDIES = st.sampled_from([f"20260101-00000{n}-aaaa" for n in range(3)])
"""A finished study, one whose trials all failed, and an imported one."""
EXAMPLES = settings().max_examples // 50
ENDLESS = "/api/v1/studies/{study_id}/events"
"""Its answer goes on while a study does."""
BY_MEANING = re.compile(r"/studies$|/front$|/resume$|/leaderboard$|/trace$")
"""What fits their descriptions may make no sense: a metric that is none, a trial without traces."""


def test_every_route_answers_as_it_is_described(served):
    # Imported here: it takes seconds, which everybody who collects this file would pay.
    import schemathesis
    from schemathesis.checks import load_all_checks

    load_all_checks()
    with served.client() as client:
        document = client.get("/api/v1/openapi.json").json()
    described = schemathesis.openapi.from_dict(document)
    operations = [found.ok() for found in described.get_all_operations()]
    asked = [each for each in operations if each.path != ENDLESS]
    assert len(asked) > 20
    for operation in asked:
        ask(operation, schemathesis.GenerationMode.POSITIVE, served)
    for operation in (each for each in asked if each.query or each.body):
        ask(operation, schemathesis.GenerationMode.NEGATIVE, served)


def ask(operation, mode, served):
    """Send requests of one kind; raises for an answer that is a fault, or is not described."""
    from schemathesis.checks import CHECKS

    excluded = CHECKS.get_by_names(["ignored_auth", "unsupported_method"])
    if BY_MEANING.search(operation.path):
        excluded += CHECKS.get_by_names(["positive_data_acceptance"])

    declared = {parameter.name for parameter in operation.query}

    @seed(1)
    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def send(data):
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if mode.is_positive and "study_id" in case.path_parameters:
            case.path_parameters["study_id"] = data.draw(STUDIES)
        if mode.is_positive and "ordinal" in case.path_parameters:
            case.path_parameters["ordinal"] = data.draw(st.integers(0, 4))
        assume(declared.issuperset(case.query or {}))  # others are left unread, as HTTP has it
        case.call_and_validate(
            base_url=served.url,
            headers={"authorization": f"Bearer {served.tokens['admin']}"},
            excluded_checks=excluded,
            timeout=30,
        )

    try:
        with suppress(Unsatisfiable):  # nothing can be wrong where nothing is asked for
            send()
    except Exception as error:
        raise AssertionError(f"{operation.label}, {mode.value}: {error}") from error


def test_a_method_that_does_not_fit_names_those_that_do(client):
    answer = client.options("/api/v1/leaderboard")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert answer.json() == {
        "error": "that method does not fit this address; see /api/v1/openapi.json"
    }


def test_every_error_is_described_as_json_in_one_shape(client):
    document = client.get("/api/v1/openapi.json").json()
    told = [
        operation["responses"]["4XX"]["content"]
        for path in document["paths"].values()
        for operation in path.values()
    ]
    assert len(told) > 20
    assert {tuple(each) for each in told} == {("application/json",)}
    assert {tuple(each["application/json"]["schema"]["required"]) for each in told} == {("error",)}
