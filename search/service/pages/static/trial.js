// What a trial's page can do with scripts: show its traces in Perfetto.
const PERFETTO = "https://ui.perfetto.dev";
const ASK_EVERY_MS = 100;
const WAIT_MS = 30000;

const notice = document.getElementById("perfetto");
const notify = (words, kind = "") => {
  notice.textContent = words;
  notice.className = `notice ${kind}`;
  notice.hidden = words === "";
};

/** Resolves once the window answers a PING with PONG, as Perfetto does when it is ready. */
function ready(other) {
  return new Promise((resolve, reject) => {
    const end = (settle, value) => {
      clearInterval(asking);
      clearTimeout(giving);
      removeEventListener("message", onMessage);
      settle(value);
    };
    const onMessage = (event) => {
      if (event.source === other && event.origin === PERFETTO && event.data === "PONG") end(resolve);
    };
    addEventListener("message", onMessage);
    const asking = setInterval(() => {
      if (other.closed) end(reject, new Error("its window was closed"));
      else other.postMessage("PING", PERFETTO);
    }, ASK_EVERY_MS);
    const giving = setTimeout(() => {
      end(reject, new Error("ui.perfetto.dev does not answer, perhaps because this browser has no internet access"));
    }, WAIT_MS);
  });
}

async function fetched(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`the trace cannot be fetched (${answer.status})`);
  return answer.arrayBuffer();
}

for (const button of document.querySelectorAll("[data-trace]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const other = open(PERFETTO, "_blank"); // now, while the click still allows it
    if (other === null) {
      notify("The browser did not open a window; allow it for this page, or download the trace.", "hold");
      return;
    }
    notify("Opening Perfetto; the trace is not uploaded ...");
    button.disabled = true;
    try {
      const [buffer] = await Promise.all([fetched(button.dataset.trace), ready(other)]);
      const { title, file } = button.dataset;
      other.postMessage({ perfetto: { buffer, title, fileName: file } }, PERFETTO, [buffer]);
      notify("");
    } catch (error) {
      notify(`Not shown: ${error.message}. Download the trace and open it in a local Perfetto.`, "bad");
    } finally {
      button.disabled = false;
    }
  });
}
