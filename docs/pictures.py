"""Draws the pictures of the README from a finished run: its output, and its study in the browser.

    make run | tee run.log
    python docs/pictures.py run.log .cclsearch

Needs the extra `e2e` and Chromium.
"""

import argparse
import io
import re
import shutil
import subprocess
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 900
COLUMNS = 112
STRONG = re.compile(r"^(best|step_time|against the seed): .*", re.MULTILINE)
DIM = re.compile(r"^(\.\.\.|trial \d+ .*|next: .*)$")
REPEATED = re.compile(r" repeated to ")
OF_THIS_MACHINE = "record: "


def main() -> None:
    """Draw both from what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path, help="what `make run` printed")
    parser.add_argument("store", type=Path, help="the store that the run used")
    options = parser.parse_args()
    draw_run(options.log.read_text(encoding="utf-8"))
    photograph_study(options.store)


def draw_run(log: str) -> None:
    """Write run.svg: the command and its output, with `...` for repeated launches."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ cclsearch run --objective step_time --trials 6", "bold green"))
    for line in shown_lines(log):
        text = Text(line)
        text.highlight_regex(STRONG, "bold")
        text.highlight_regex(DIM, "dim")
        console.print(text)
    svg = console.export_svg(title="cclsearch", font_aspect_ratio=0.61)
    # The font that rich embeds comes from another site.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "monospace")
    (IMAGES / "run.svg").write_text(svg, encoding="utf-8")


def shown_lines(log: str) -> list[str]:
    """Return the lines of the search, each row of repeated launches as `...`."""
    lines = log.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("study "))
    shown: list[str] = []
    for line in lines[first:]:
        if not line.strip():
            break
        kept = "..." if REPEATED.search(line) else line
        if not line.startswith(OF_THIS_MACHINE) and (kept != "..." or shown[-1] != "..."):
            shown.append(kept)
    return shown


def photograph_study(store: Path) -> None:
    """Write study.png: the page of the newest study, as the service shows it."""
    browser = next(found for name in BROWSERS if (found := shutil.which(name)))
    command = ["cclsearch", "serve", "--port", "0", "--store", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        link = next(
            found[0] for line in service.stdout if (found := re.search(r"http\S+token=\S+", line))
        )
        with sync_playwright() as playwright:
            page = playwright.chromium.launch(
                executable_path=browser, args=["--no-sandbox"]
            ).new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(link)
            page.locator("a[href^='/studies/2']").first.click()
            page.wait_for_load_state("networkidle")
            page.screenshot(path=IMAGES / "study.png")
        service.terminate()


if __name__ == "__main__":
    main()
