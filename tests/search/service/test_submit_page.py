"""The form of a new study, as a browser without scripts sends it."""

import pytest

from search.service.config import OfferedEnvironment, ServiceConfig
from tests.search.service.conftest import running
from tests.search.service.reading_pages import get, links
from tests.support.report import read_page


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A service with two environments; nothing is ever searched."""
    folder = tmp_path_factory.mktemp("submitting")
    (folder / "small.toml").write_text('name = "small"\n[budget]\ntrials = 4\n', encoding="utf-8")
    offered = {
        "builtin": OfferedEnvironment(description="all of it <b>"),
        "small": OfferedEnvironment(study="small.toml"),
    }
    with running(folder / "store", ServiceConfig(environment=offered), folder=folder) as found:
        yield found


@pytest.fixture
def client(served):
    """A client that may submit."""
    with served.client("submit") as found:
        yield found


@pytest.fixture
def refused(served, client):
    """Sends a form with some fields changed; gives the page that says what is wrong with it."""

    def send(fields):
        before = served.service.records.study_count()
        answer = client.post("/studies/new", data=fields)
        assert (answer.status_code, served.service.records.study_count()) == (422, before)
        return read_page(answer.text)

    return send


def filled(page, **changed: object) -> dict[str, object]:
    """What a browser would send of the form as it stands, with some fields changed."""
    (form,) = (each for each in page.all("form") if each.attributes.get("action") == "/studies/new")
    sent: dict[str, object] = {}
    for each in form.all("input", "textarea", "select"):
        name, kind = each.attributes["name"], each.attributes.get("type")
        if kind in ("checkbox", "radio") and "checked" not in each.attributes:
            continue
        if each.name == "select":
            chosen = [o for o in each.all("option") if "selected" in o.attributes]
            value = chosen[0].attributes.get("value", chosen[0].text) if chosen else ""
        else:
            value = each.text if each.name == "textarea" else each.attributes.get("value") or ""
        sent.setdefault(name, [])
        sent[name].append(value)
    return {**sent, **changed}


def problem(page, name: str) -> str:
    return " ".join(page.find(f"{name}-problem").text.split())


def test_the_form_as_it_stands_submits_the_environments_own_study_once(served, client):
    fields, other = (filled(get(client, "/studies/new")) for _ in range(2))
    before = served.service.records.study_count()
    first, second = (client.post("/studies/new", data=fields) for _ in range(2))
    study_id = first.headers["location"].removeprefix("/studies/")

    assert (first.status_code, second.headers["location"]) == (303, first.headers["location"])
    assert served.service.records.study_count() == before + 1
    assert served.service.study(study_id).study.name == "builtin-cpu"
    assert "queued" in get(client, f"/studies/{study_id}").find("status").text
    assert other["key"] != fields["key"]


def test_what_is_filled_in_is_asked_for(served, client):
    fields = filled(
        get(client, "/studies/new"),
        name="mine",
        objective="tokens_per_s",
        more_objectives="peak_memory\n\n",
        limits=" peak_memory < 30 GiB \n",
        trials="7",
        max_wall_min="1.5",
        strategy="random",
    )
    fields["knob.tp"] = ["1"]
    answer = client.post("/studies/new", data=fields)
    study = served.service.study(answer.headers["location"].removeprefix("/studies/")).study
    narrowed = {each.name: each.choices for each in study.space.dimensions}

    assert (study.name, study.objective.expression) == ("mine", "tokens_per_s")
    assert [each.expression for each in study.more_objectives] == ["peak_memory"]
    assert study.limits == ("peak_memory < 30 GiB",)
    assert (study.budget.trials, study.budget.max_wall_s, study.strategy) == (7, 90.0, "random")
    assert narrowed["tp"] == (1,)
    assert len(narrowed["pp"]) > 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("objective", "nonsense", "nonsense"),
        ("limits", "<script> <", "<script>"),
        ("trials", "100000", "at most 200"),
        ("trials", "many", "integer"),
        ("patience", "0", "greater than or equal to 1"),
        ("max_wall_min", "soon", "number"),
        ("max_wall_min", "nan", "finite"),
        ("strategy", "nonsense", "nonsense"),
        ("seed_policy", "../../etc/passwd", "no built-in seed"),
        ("global_batch", "-4", "greater than or equal to 1"),
        ("name", "x" * 201, "at most 200 characters"),
        ("environment", "../builtin", "is not offered"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field_and_nothing_is_lost(
    client, refused, name, value, words
):
    fields = filled(get(client, "/studies/new"), **{"name": "kept", name: value})
    page = refused(fields)

    assert words in problem(page, name)
    field = page.find(name)
    assert field.attributes["aria-invalid"] == "true"
    assert f"{name}-problem" in field.attributes["aria-describedby"]
    assert filled(page)["key"] == fields["key"]
    assert name == "name" or page.find("name").attributes["value"] == "kept"


def test_every_error_of_a_form_is_said_beside_its_field(client, refused):
    fields = filled(
        get(client, "/studies/new"),
        objective="step_tim",
        more_objectives="memry",
        limits="peak_memory < 30 GiB\npeek_memory < 30 GiB",
        trials="100000",
        strategy="nonsense",
        seed_policy="nobody",
        max_wall_min="soon",
    )
    fields["knob.tp"] = ["1", "$(touch /tmp/x)"]
    page = refused(fields)

    for name, words in {
        "objective": "'step_tim'",
        "more_objectives": "'memry'",
        "limits": "'peek_memory'",
        "trials": "at most 200",
        "strategy": "'nonsense'",
        "seed_policy": "'nobody'",
        "max_wall_min": "number",
        "choices": "$(touch /tmp/x)",
    }.items():
        assert words in problem(page, name)
    assert len([*page.find("problems").all("li")]) == 8


def test_a_knob_without_any_choice_is_refused_beside_the_knobs(client, refused):
    fields = filled(get(client, "/studies/new"))
    del fields["knob.tp"]
    page = refused(fields)

    assert "'tp'" in problem(page, "choices")
    marked = [e for e in page.all("input") if e.attributes.get("name") == "knob.tp"]
    assert marked
    assert not any("checked" in each.attributes for each in marked)


def test_another_environment_shows_its_own_form(client):
    answer = client.post("/studies/new", data={"environment": "small", "change": "1"})
    page = get(client, answer.headers["location"])

    assert page.find("trials").attributes["placeholder"] == "4"
    assert page.find("name").attributes["placeholder"] == "small"


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"a=1&" * 3000, "application/x-www-form-urlencoded", 422),
        (b"name=\xff%ff", "application/x-www-form-urlencoded", 422),
    ],
)
def test_what_is_no_form_is_refused_on_a_page(client, content, kind, status):
    answer = client.post("/studies/new", content=content, headers={"content-type": kind})

    assert answer.status_code == status
    assert "<h1>" in answer.text


def test_who_may_only_read_sees_no_form(served):
    with served.client("read") as reader:
        assert reader.get("/studies/new").status_code == 403
        assert "/studies/new" not in links(get(reader, "/studies")).values()
