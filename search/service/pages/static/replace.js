// Refreshes parts of a page in place, without moving what surrounds them.

/** Fetch this page again and replace every [data-live] part that has changed; false if it failed. */
export async function refresh() {
  let text;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
    if (!answer.ok) return false;
    text = await answer.text();
  } catch {
    return false;
  }
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(part.id);
    if (next) replace(part, next);
  }
  return true;
}

function replace(part, next) {
  const source = next.innerHTML;
  if (part.innerHTML === source) return;
  const focused = part.contains(document.activeElement) ? mark(document.activeElement) : null;
  const checked = [...part.querySelectorAll("input:checked")].map(mark);
  const open = [...part.querySelectorAll("details")].map((each) => each.open);
  part.innerHTML = source;
  for (const each of checked) find(part, each)?.click();
  part.querySelectorAll("details").forEach((each, place) => { each.open = open[place] ?? each.open; });
  if (focused) find(part, focused)?.focus({ preventScroll: true });
}

const mark = (element) => ({ tag: element.tagName, name: element.name, value: element.value, link: element.getAttribute("href") });

const find = (part, { tag, name, value, link }) =>
  [...part.querySelectorAll(tag)].find((each) =>
    each.name === name && each.value === value && each.getAttribute("href") === link);

/** Announce a change to screen readers. */
export function say(words) {
  const place = document.getElementById("announcement");
  if (place.textContent !== words) place.textContent = words;
}
