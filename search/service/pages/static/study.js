// The page of a study: refreshes itself whenever its search prints an event.
import { refresh, say } from "./replace.js";

const LEAST_MS = 1000;
const AGAIN_MS = 4000;
const EVENTS = ["study_started", "trial_started", "config_decided", "phase", "trial_finished", "noise_measured",
  "repeat_finished", "race_decided", "finished", "notice"];
const { study, since } = document.getElementById("study").dataset;
let place = since;
let due = null;
let last = 0;

/** Refresh the page soon, once for many events. */
function soon() {
  if (due !== null || document.hidden) return;
  due = setTimeout(async () => {
    due = null;
    last = Date.now();
    await refresh();
    toEnds();
  }, Math.max(150, last + LEAST_MS - Date.now()));
}

function handle(event) {
  place = event.lastEventId || place;
  try {
    const { event: name, ordinal, status } = JSON.parse(event.data);
    if (name === "trial_finished") say(`Trial ${Number(ordinal)} ${status === "failed" ? "failed" : "was measured"}`);
  } catch { /* a line that is not an event */ }
  soon();
}

function toEnds() {
  for (const pre of document.querySelectorAll(".log")) pre.scrollTop = pre.scrollHeight;
}

/** Show how far the running launches are; the server draws those that are new. */
function progress(event) {
  const { launches } = JSON.parse(event.data);
  const shown = [...document.querySelectorAll("#now .launch")];
  const log = (place) => shown[place].querySelector(".log");
  if (shown.length !== launches.length || launches.some((each, place) => (each.log !== "") !== (log(place) !== null))) {
    soon();
    return;
  }
  launches.forEach((each, place) => {
    shown[place].querySelector(".far .number").textContent = each.words;
    shown[place].querySelector("progress").value = each.step ?? 0;
    const pre = log(place);
    if (pre === null || pre.textContent === each.log) return;
    const follows = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
    pre.textContent = each.log;
    if (follows) pre.scrollTop = pre.scrollHeight;
  });
}

function follow() {
  const source = new EventSource(`/api/v1/studies/${encodeURIComponent(study)}/events?since=${encodeURIComponent(place)}`);
  for (const name of EVENTS) source.addEventListener(name, handle);
  source.addEventListener("progress", progress);
  source.addEventListener("open", soon);
  // The browser reconnects after a lost connection, but not after a refusal.
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, AGAIN_MS);
  });
  source.addEventListener("end", () => {
    source.close();
    ended();
  });
}

/** The queue records the end a moment after the search; a search elsewhere sends no events. */
async function ended() {
  await refresh();
  if (document.querySelector("#status .run, #status .wait")) setTimeout(ended, AGAIN_MS);
  else say("The search ended");
}

toEnds();
follow();
document.addEventListener("visibilitychange", soon);
