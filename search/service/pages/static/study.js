// The page of a study: reads itself again whenever its search says something.
import { refresh, say } from "./replace.js";

const LEAST_MS = 1000;
const AGAIN_MS = 4000;
const SAYS = ["study_started", "trial_started", "config_decided", "phase", "trial_finished", "noise_measured",
  "repeat_finished", "race_decided", "finished", "notice"];
const { study, since } = document.getElementById("study").dataset;
let place = since;
let due = null;
let last = 0;

/** Read the page again soon, however much was said meanwhile. */
function soon() {
  if (due !== null || document.hidden) return;
  due = setTimeout(async () => {
    due = null;
    last = Date.now();
    await refresh();
  }, Math.max(150, last + LEAST_MS - Date.now()));
}

function told(event) {
  place = event.lastEventId || place;
  try {
    const { event: name, ordinal, status } = JSON.parse(event.data);
    if (name === "trial_finished") say(`Trial ${Number(ordinal)} ${status === "failed" ? "failed" : "was measured"}`);
  } catch { /* a line that is no event */ }
  soon();
}

function follow() {
  const source = new EventSource(`/api/v1/studies/${encodeURIComponent(study)}/events?since=${encodeURIComponent(place)}`);
  for (const name of SAYS) source.addEventListener(name, told);
  source.addEventListener("open", soon);
  // A lost connection is taken up again by the browser; one that was refused is not.
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, AGAIN_MS);
  });
  source.addEventListener("end", () => {
    source.close();
    ended();
  });
}

/** The queue notes the end a moment after the search; one that runs elsewhere tells no events. */
async function ended() {
  await refresh();
  if (document.querySelector("#status .run, #status .wait")) setTimeout(ended, AGAIN_MS);
  else say("The search ended");
}

follow();
document.addEventListener("visibilitychange", soon);
