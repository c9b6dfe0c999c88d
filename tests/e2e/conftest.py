"""A real service, and a browser that looks at it; screenshots of everything go to build/e2e."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.service import Serving

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "build" / "e2e"
TINY = ROOT / "tests" / "data" / "tiny_study.toml"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CONFIG = """\
[environment.tiny]
study = "tiny.toml"
description = "two ranks on this machine"
[environment.patient]
study = "patient.toml"
description = "the same, with a hundred trials"
devices = "this machine"
[environment.script]
study = "script.toml"
description = "a script that says which step it is in"
devices = "this machine, for scripts"
"""
SCRIPT_STUDY = """
name = "script"
[workload]
name = "script"
global_batch = 8
sequence_length = 8
[environment]
device = "cpu"
world_size = 1
ranks_per_node = 1
[launch]
recipe = "command"
[command]
run = ["PYTHON", "train.py", "{args}"]
rank_count = "dp"
[space.dp]
choices = [1]
[measure]
warmup_steps = 1
timed_steps = 20
profiled_steps = 0
"""
SCRIPT = """
import time, cclsearch
for step in cclsearch.steps():
    print(f"<b>step {step}</b>", flush=True)
    time.sleep(1)
    cclsearch.log(tokens=64)
"""
WIDE = {"width": 1280, "height": 900}


class Operated:
    """The service as its operator starts, kills and restarts it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._serving = Serving(folder)

    @property
    def url(self) -> str:
        return self.link.partition("/?")[0]

    @property
    def link(self) -> str:
        return self._serving.link

    def kill(self) -> None:
        """End it as a crash does."""
        self._serving.kill()

    def start_again(self) -> None:
        self._serving = Serving(self._folder, self._serving.port)


@pytest.fixture(scope="session")
def service(tmp_path_factory) -> Iterator[Operated]:
    folder = tmp_path_factory.mktemp("service")
    tiny = TINY.read_text(encoding="utf-8")
    (folder / "tiny.toml").write_text(tiny, encoding="utf-8")
    patient = tiny.replace("trials = 4", "trials = 100").replace("patience = 4", "patience = 100")
    (folder / "patient.toml").write_text(patient, encoding="utf-8")
    script = SCRIPT_STUDY.replace("PYTHON", sys.executable)
    script = script.replace("train.py", str(folder / "train.py"))
    (folder / "script.toml").write_text(script, encoding="utf-8")
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "service.toml").write_text(CONFIG, encoding="utf-8")
    operated = Operated(folder)
    yield operated
    operated.kill()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.exit("these tests need Chromium: apt-get install chromium", returncode=2)
    SHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def visit(service, browser) -> Iterator[Callable]:
    """Opens a page as somebody who signed in; no page may complain of anything."""
    contexts, complaints = [], []

    def open_page(path: str = "/studies", **looks: object):
        context = browser.new_context(base_url=service.url, **{"viewport": WIDE, **looks})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complain(complaints, said))
        page.goto(service.link)
        if path != "/studies":
            page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def complain(complaints: list[str], said) -> None:
    """Take errors to heart, but not that a service was killed or refused what a form asked."""
    expected = ("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY", "status of 422")
    if said.type == "error" and not any(word in said.text for word in expected):
        complaints.append(said.text)


@pytest.fixture
def shoot() -> Callable:
    """Takes a picture of a whole page."""

    def take(page, name: str) -> None:
        page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    return take
