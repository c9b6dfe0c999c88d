"""What people do in a browser, from the link that the service prints to the last chart.

They need a browser, so they are not among the tests that `make test` runs: `make e2e`.
"""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

PATIENCE_MS = 240_000
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
END_OF_LINE = """mark => {
    const line = mark.querySelector("polyline");
    const last = line.points[line.points.length - 1];
    const {x, y} = new DOMPoint(last.x, last.y).matrixTransform(line.getScreenCTM());
    return {x, y};
}"""


def fill_in(page, environment, name, trials=None):
    """Say in the form what is searched."""
    page.get_by_role("combobox", name="Environment", exact=True).select_option(environment)
    page.get_by_label("Name", exact=True).fill(name)
    if trials is not None:
        page.get_by_label("Trials", exact=True).fill(str(trials))


def around(place, half=6):
    """The box around a place on the page."""
    return {"x": place["x"] - half, "y": place["y"] - half, "width": 2 * half, "height": 2 * half}


def drag(page, box):
    """Move the mouse over a box with its button down."""
    page.mouse.move(box["x"], box["y"])
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"], box["y"] + box["height"], steps=4)
    page.mouse.up()


@pytest.fixture(scope="session")
def finished(service, browser):
    """The id of a study that was searched to its end."""
    with browser.new_context(base_url=service.url, viewport=WIDE) as context:
        page = context.new_page()
        page.goto(service.link)
        page.goto("/studies/new?environment=tiny")
        fill_in(page, "tiny", "searched to its end", trials=3)
        page.get_by_role("button", name="Submit").click()
        expect(page.locator("#status")).to_contain_text("finished", timeout=PATIENCE_MS)
        return page.url.rpartition("/")[2]


def test_the_link_signs_in_and_leaves_no_token_in_the_address(visit):
    page = visit()

    expect(page.get_by_role("heading", name="Studies", exact=True)).to_be_visible()
    assert "token" not in page.url


def test_nobody_sees_anything_without_a_token(browser, service, shoot):
    with browser.new_context(base_url=service.url, viewport=WIDE) as context:
        page = context.new_page()
        page.goto("/studies")

        assert "/login" in page.url
        shoot(page, "login")
        page.get_by_label(re.compile("token", re.IGNORECASE)).fill("wrong")
        page.get_by_role("button", name=re.compile("sign in", re.IGNORECASE)).click()
        expect(page.get_by_text("not known here")).to_be_visible()


def test_a_study_is_submitted_in_the_form_and_watched_until_it_is_finished(visit, shoot):
    page = visit("/studies/new?environment=tiny")
    fill_in(page, "tiny", "watched live", trials=3)
    shoot(page, "form")

    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="watched live")).to_be_visible()
    page.evaluate("window.stayed = true")
    expect(page.locator("#status")).to_contain_text("running", timeout=PATIENCE_MS)
    expect(page.locator("#history svg")).to_be_visible(timeout=PATIENCE_MS)
    shoot(page, "study-running")
    expect(page.locator("#status")).to_contain_text("finished", timeout=PATIENCE_MS)

    assert page.evaluate("window.stayed") is True  # it was never loaded anew
    expect(page.locator("#best .headline")).to_contain_text("trial")
    expect(page.locator("#events li").first).to_be_visible()
    shoot(page, "study-finished")


def test_what_cannot_be_searched_is_said_beside_the_field(visit, shoot):
    page = visit("/studies/new")
    page.get_by_role("combobox", name="Objective", exact=True).fill("beauty * 2")

    page.get_by_role("button", name="Submit").click()

    expect(page.get_by_role("alert")).to_contain_text("beauty")
    shoot(page, "form-refused")


def test_a_trial_is_opened_from_the_table(visit, finished, shoot):
    page = visit(f"/studies/{finished}")
    page.get_by_role("link", name="Trials", exact=True).click()
    shoot(page, "trials")

    page.locator("#trials tbody a").first.click()

    expect(page.get_by_role("heading", name=re.compile(r"^Trial \d"))).to_be_visible()
    expect(page.get_by_role("heading", name="Configuration")).to_be_visible()
    expect(page.locator("pre code").first).to_contain_text("python")
    shoot(page, "trial")


def test_trials_are_sorted_and_filtered_without_losing_the_page(visit, finished):
    page = visit(f"/studies/{finished}/trials")
    page.evaluate("window.stayed = true")

    rows = page.locator("#trials tbody tr")
    count = rows.count()

    page.get_by_role("link", name=re.compile("step_time")).first.click()
    expect(page).to_have_url(re.compile("sort=score"))
    expect(page.locator("#trials th[aria-sort]")).to_contain_text("step_time")
    seconds = [
        float(text.split()[0]) for text in page.locator("#trials td.result").all_text_contents()
    ]
    assert seconds == sorted(seconds)
    assert len(seconds) == count

    page.get_by_label("Text").fill("no such setting")
    expect(rows).to_have_count(0)
    page.get_by_label("Text").fill("micro_batch")
    expect(rows).to_have_count(count)

    assert page.evaluate("window.stayed") is True


def test_two_trials_are_compared(visit, finished, shoot):
    page = visit(f"/studies/{finished}/trials")
    marks = page.get_by_role("checkbox", name=re.compile("^Compare trial"))
    marks.nth(0).check()
    marks.nth(1).check()

    page.get_by_role("button", name="Compare selected").click()

    expect(page.get_by_role("heading", name="Side by side")).to_be_visible()
    expect(page.get_by_role("heading", name=re.compile("against A"))).to_be_visible()
    shoot(page, "compare-trials")


def test_a_running_launch_shows_its_steps_and_its_log_without_a_new_page(visit, shoot):
    page = visit("/studies/new?environment=script")
    fill_in(page, "script", "watched step by step", trials=1)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="watched step by step")).to_be_visible()
    page.evaluate("window.stayed = true")

    far = page.locator("#now .far")
    expect(far.first).to_contain_text("step 3 of", timeout=PATIENCE_MS)
    expect(far.first).to_contain_text("step 5 of", timeout=PATIENCE_MS)
    expect(page.locator("#now .log").first).to_contain_text("<b>step 4</b>")
    shoot(page, "study-launch")
    assert page.evaluate("window.stayed") is True
    page.get_by_role("button", name="Cancel").click()


def test_the_best_is_copied_with_one_click(browser, service, finished):
    allowed = ["clipboard-read", "clipboard-write"]
    with browser.new_context(base_url=service.url, viewport=WIDE, permissions=allowed) as context:
        page = context.new_page()
        page.goto(service.link)
        page.goto(f"/studies/{finished}")
        page.get_by_role("button", name="arguments").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        copied = page.evaluate("navigator.clipboard.readText()")

    assert re.match(r"--\w", copied)


def test_keys_search_go_to_the_studies_and_show_help_but_not_while_typing(visit, finished):
    page = visit(f"/studies/{finished}/trials")

    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.get_by_label("Text")).to_be_focused()
    page.keyboard.type("g s?/")
    expect(page.get_by_label("Text")).to_have_value("g s?/")
    page.get_by_label("Text").blur()
    page.keyboard.type("gs")

    expect(page).to_have_url(re.compile("/studies$"))


def test_a_search_is_cancelled(visit, shoot):
    page = visit("/studies/new?environment=patient")
    fill_in(page, "patient", "cancelled in the middle")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#events")).to_contain_text("rial", timeout=PATIENCE_MS)

    page.get_by_role("button", name="Cancel").click()

    expect(page.locator("#status")).to_contain_text("cancelled", timeout=PATIENCE_MS)
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    shoot(page, "study-cancelled")


def test_a_page_comes_back_by_itself_when_the_service_was_killed(visit, service):
    page = visit("/studies/new?environment=tiny")
    fill_in(page, "tiny", "outlives the service", trials=2)
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#status")).to_contain_text("running", timeout=PATIENCE_MS)
    page.wait_for_load_state()  # a page without its script yet can only be loaded again
    page.evaluate("window.stayed = true")

    service.kill()
    service.start_again()

    expect(page.locator("#status")).to_contain_text("finished", timeout=PATIENCE_MS)
    assert page.evaluate("window.stayed") is True


PAGES = {
    "studies": "/studies",
    "new": "/studies/new",
    "study": "/studies/{}",
    "trials": "/studies/{}/trials",
    "trial": "/studies/{}/trials/0",
    "explore": "/studies/{}/explore",
    "policies": "/studies/{}/policies",
    "compare": "/compare?side={0}:0&side={0}",
    "leaderboard": "/leaderboard",
    "health": "/health",
}
LOOKS = {
    "wide-light": {"viewport": WIDE, "color_scheme": "light"},
    "wide-dark": {"viewport": WIDE, "color_scheme": "dark"},
    "phone-light": {"viewport": PHONE, "is_mobile": True, "has_touch": True},
    "phone-dark": {"viewport": PHONE, "is_mobile": True, "color_scheme": "dark"},
    "no-script": {"viewport": WIDE, "java_script_enabled": False},
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_every_page_can_be_read_in_every_look(visit, finished, shoot, name, look):
    page = visit(PAGES[name].format(finished), **LOOKS[look])

    expect(page.get_by_role("heading", level=1)).to_be_visible()
    shoot(page, f"{name}-{look}")
    if look != "no-script":
        # A phone zooms out until a page fits, so its window is no measure.
        width = page.evaluate("Math.max(document.documentElement.scrollWidth, innerWidth)")
        assert width <= LOOKS[look]["viewport"]["width"]  # nothing hangs out of the page
        found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
        assert not found.violations_count, found.generate_report()


@pytest.mark.parametrize("name", PAGES)
def test_every_page_can_be_walked_with_the_keyboard(visit, finished, name):
    page = visit(PAGES[name].format(finished))

    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break  # beyond the last of them
        seen.append(page.evaluate("document.activeElement.outerHTML.slice(0, 300)"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen[-1]  # whoever walks sees where they are

    assert len(set(seen)) > 5


def test_a_trial_that_is_chosen_is_marked_in_every_chart(visit, finished, shoot):
    page = visit(f"/studies/{finished}/explore")
    row = page.locator("#shown tbody tr").nth(1)

    row.get_by_role("checkbox").check()

    marked = page.locator("#charts .chosen[data-trial]")
    assert {mark.get_attribute("data-trial") for mark in marked.all()} == {
        row.get_attribute("data-trial")
    }
    charts = page.locator("#charts svg").filter(has=page.locator(".chosen[data-trial]"))
    assert charts.count() == page.locator("#charts svg").count() > 1
    shoot(page, "explore-chosen")


def test_a_drag_over_lines_chooses_them_and_a_second_one_narrows_the_choice(visit, finished, shoot):
    page = visit(f"/studies/{finished}/explore")
    chart = page.locator("#charts svg").last
    row = page.locator("#shown tbody tr").first
    status = page.locator("#chosen")
    count = page.locator("#shown tbody tr").count()

    chart.scroll_into_view_if_needed()
    drag(page, chart.bounding_box())
    assert status.text_content() == f"{count} trials selected."

    page.get_by_label("intersect").check()
    best = chart.locator(f"[data-trial='{row.get_attribute('data-trial')}']").first
    drag(page, around(best.evaluate(END_OF_LINE)))

    assert row.is_visible()
    assert row.get_by_role("checkbox").is_checked()
    assert 1 <= page.locator("#shown tbody tr:visible").count() < count
    shoot(page, "explore-narrowed")
