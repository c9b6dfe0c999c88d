// Keyboard shortcuts: / searches, g s opens the studies, g l the leaderboard, ? shows them all.
const SECOND_KEY_MS = 1500;
const PLACES = { s: "/studies", l: "/leaderboard" };
const help = document.getElementById("keys");
let went = -SECOND_KEY_MS;

function search() {
  const field = document.querySelector("main input[type=search], #text");
  if (field) field.focus();
  else location.assign("/studies#text");
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
  if (event.target.closest?.("input, textarea, select, [contenteditable]") || help.open) return;
  const place = event.timeStamp - went < SECOND_KEY_MS ? PLACES[event.key] : undefined;
  went = event.key === "g" ? event.timeStamp : -SECOND_KEY_MS;
  if (place) location.assign(place);
  else if (event.key === "/") search();
  else if (event.key === "?") help.showModal();
  else return;
  event.preventDefault();
});

if (location.hash === "#text") document.getElementById("text")?.focus();
