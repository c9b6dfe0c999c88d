// Sorting and filtering without a new page: the same addresses, only the table is put in place.
import { refresh } from "./replace.js";

const EVERY_MS = 5000;
const announcement = document.getElementById("announcement");
let turns = 0;

async function show(address, region) {
  const turn = ++turns;
  const old = document.querySelector(region);
  if (old === null) return location.assign(address);
  old.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(address, { headers: { accept: "text/html" } });
    if (turn !== turns) return; // a later request replaced this one
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector(region);
    if (!answer.ok || fresh === null) return location.assign(address);
    const key = document.activeElement?.dataset?.key;
    old.replaceWith(document.adoptNode(fresh));
    history.pushState(null, "", address);
    if (key !== undefined) fresh.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
    if (announcement !== null) announcement.textContent = fresh.querySelector("caption")?.textContent ?? "";
    for (const form of document.querySelectorAll("form[data-swaps]")) {
      const there = new URL(address, location.href).searchParams;
      for (const name of ["sort", "order"]) {
        const field = form.elements.namedItem(name);
        if (field !== null && there.has(name)) field.value = there.get(name);
      }
    }
  } catch {
    location.assign(address);
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-swap]");
  if (link === null || link === undefined) return;
  if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  show(link.href, link.dataset.swap);
});

for (const form of document.querySelectorAll("form[data-swaps]")) {
  const address = () => {
    const fields = [...new FormData(form)].filter(([, value]) => value !== "");
    return `${form.action}?${new URLSearchParams(fields)}`;
  };
  let waiting;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(waiting);
    show(address(), form.dataset.swaps);
  });
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    const pause = event.target.type === "search" || event.target.type === "text" ? 250 : 0;
    waiting = setTimeout(() => show(address(), form.dataset.swaps), pause);
  });
}

setInterval(() => {
  const isOut = document.querySelector("[aria-busy]") !== null || document.hidden;
  if (!isOut && document.querySelector("[data-live]") !== null) refresh();
}, EVERY_MS);

addEventListener("popstate", () => location.reload());
