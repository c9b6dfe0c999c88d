"""The form of a new study, as a browser without scripts sends it."""

import pytest

from search.service.config import OfferedEnvironment, ServiceConfig
from tests.search.service.conftest import running
from tests.search.service.reading_pages import get, links
from tests.support.report import read_page


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A service with two environments, and a client that may submit; nothing is ever searched."""
    folder = tmp_path_factory.mktemp("submitting")
    (folder / "small.toml").write_text('name = "small"\n[budget]\ntrials = 4\n', encoding="utf-8")
    offered = {
        "builtin": OfferedEnvironment(description="all of it <b>"),
        "small": OfferedEnvironment(study="small.toml"),
    }
    config = ServiceConfig(environment=offered)
    with (
        running(folder / "store", config, folder=folder) as served,
        served.client("submit") as client,
    ):
        yield served, client


def filled(page, **changed: object) -> dict[str, object]:
    """What a browser would send of the form as it stands, with some fields changed."""
    (form,) = (each for each in page.all("form") if each.attributes["action"] == "/studies/new")
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


def studies_in(served) -> int:
    return served.service.records.study_count()


def test_the_form_as_it_stands_submits_the_environments_own_study(place):
    served, client = place
    answer = client.post("/studies/new", data=filled(get(client, "/studies/new")))
    study_id = answer.headers["location"].removeprefix("/studies/")
    row = served.service.study(study_id)

    assert answer.status_code == 303
    assert row.study.name == "builtin-cpu"
    assert "queued" in get(client, f"/studies/{study_id}").find("status").text


def test_what_is_filled_in_is_asked_for(place):
    served, client = place
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


def test_a_form_that_is_sent_twice_makes_one_study(place):
    served, client = place
    fields, before = filled(get(client, "/studies/new")), studies_in(served)
    first, second = (client.post("/studies/new", data=fields) for _ in range(2))

    assert first.headers["location"] == second.headers["location"]
    assert studies_in(served) == before + 1


def test_every_form_has_a_key_of_its_own(place):
    _, client = place

    assert filled(get(client, "/studies/new"))["key"] != filled(get(client, "/studies/new"))["key"]


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
    ],
)
def test_what_is_wrong_is_said_beside_its_field_and_nothing_is_lost(place, name, value, words):
    served, client = place
    before = studies_in(served)
    fields = filled(get(client, "/studies/new"), **{"name": "kept", name: value})
    answer = client.post("/studies/new", data=fields)
    page = posted(answer)

    assert answer.status_code == 422
    assert words in problem(page, name)
    field = page.find(name)
    assert field.attributes["aria-invalid"] == "true"
    assert f"{name}-problem" in field.attributes["aria-describedby"]
    assert filled(page)["key"] == fields["key"]
    assert name == "name" or page.find("name").attributes["value"] == "kept"
    assert studies_in(served) == before


def test_every_error_of_a_form_is_said_beside_its_field(place):
    served, client = place
    before = studies_in(served)
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
    fields["knob.tp"] = ["1", "17"]
    page = posted(client.post("/studies/new", data=fields))

    assert "'step_tim'" in problem(page, "objective")
    assert "'memry'" in problem(page, "more_objectives")
    assert "'peek_memory'" in problem(page, "limits")
    assert "at most 200" in problem(page, "trials")
    assert "'nonsense'" in problem(page, "strategy")
    assert "'nobody'" in problem(page, "seed_policy")
    assert "number" in problem(page, "max_wall_min")
    assert "17" in problem(page, "choices")
    assert len([*page.find("problems").all("li")]) == 8
    assert studies_in(served) == before


def test_a_knob_without_any_choice_is_refused_beside_the_knobs(place):
    _, client = place
    fields = filled(get(client, "/studies/new"))
    del fields["knob.tp"]
    page = posted(client.post("/studies/new", data=fields))

    assert "'tp'" in problem(page, "choices")
    marked = [e for e in page.all("input") if e.attributes.get("name") == "knob.tp"]
    assert marked
    assert not any("checked" in each.attributes for each in marked)


def test_a_choice_that_is_not_offered_is_refused(place):
    _, client = place
    fields = {**filled(get(client, "/studies/new")), "knob.tp": ["1", "$(touch /tmp/x)"]}

    assert "$(touch /tmp/x)" in problem(posted(client.post("/studies/new", data=fields)), "choices")


def test_another_environment_shows_its_own_form(place):
    _, client = place
    answer = client.post("/studies/new", data={"environment": "small", "change": "1"})
    page = get(client, answer.headers["location"])

    assert page.find("trials").attributes["placeholder"] == "4"
    assert page.find("name").attributes["placeholder"] == "small"


def test_an_environment_that_is_not_offered_is_refused(place):
    _, client = place
    fields = filled(get(client, "/studies/new"), environment="../builtin")
    answer = client.post("/studies/new", data=fields)

    assert "is not offered" in problem(posted(answer), "environment")


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"a=1&" * 3000, "application/x-www-form-urlencoded", 422),
        (b"name=\xff%ff", "application/x-www-form-urlencoded", 422),
    ],
)
def test_what_is_no_form_is_refused_on_a_page(place, content, kind, status):
    _, client = place
    answer = client.post("/studies/new", content=content, headers={"content-type": kind})

    assert answer.status_code == status
    assert "<h1>" in answer.text


def test_who_may_only_read_sees_no_form(place):
    served, _ = place
    with served.client("read") as reader:
        assert reader.get("/studies/new").status_code == 403
        assert "/studies/new" not in links(get(reader, "/studies")).values()


def posted(answer):
    """The page in an answer to a form."""
    return read_page(answer.text)
