// The page of studies: rows can be selected for comparison, and change while searches run.
import { refresh } from "./replace.js";

const EVERY_MS = 5000;
const form = document.getElementById("compare");
const button = document.getElementById("compare-these");
const hint = document.getElementById("compare-hint");

function marked() {
  const count = form.querySelectorAll("input[name=side]:checked").length;
  button.disabled = count < 2;
  hint.textContent = count < 2 ? "Select two studies to compare them." : `${count} selected.`;
}

if (form) {
  form.addEventListener("change", marked);
  marked();
  setInterval(async () => {
    const moves = document.querySelector("tr[data-status=running], tr[data-status=queued], tr[data-status=cancelling]");
    if (moves && !document.hidden && await refresh()) marked();
  }, EVERY_MS);
}
