// Buttons that copy a text of the page; without scripts they are not shown.
import { say } from "./replace.js";

const SHOWN_MS = 2500;

document.addEventListener("click", async ({ target }) => {
  const button = target.closest?.("[data-copies]");
  const source = button && document.getElementById(button.dataset.copies);
  if (!source) return;
  const word = button.dataset.word ??= button.textContent;
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch { // only pages over HTTPS or from this machine may write to the clipboard
    source.closest("details")?.setAttribute("open", "");
    const range = document.createRange();
    range.selectNodeContents(source);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "Selected, press Ctrl+C";
  }
  say(button.textContent);
  setTimeout(() => { button.textContent = word; }, SHOWN_MS);
});
