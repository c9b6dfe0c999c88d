// One selection of trials shared by all charts and the table.
const root = document.getElementById("charts");
const table = document.getElementById("shown");
const MOST_COMPARED = 6;

if (root !== null && table !== null) start();

function start() {
  const announcement = document.getElementById("announcement");
  const status = document.getElementById("chosen");
  const rows = [...table.tBodies[0].rows];
  const marks = [...root.querySelectorAll("[data-trial]")];
  let chosen = new Set();
  let hidesOthers = false;

  document.getElementById("choosing").hidden = false;

  function show() {
    root.classList.toggle("some", chosen.size > 0);
    for (const mark of marks) mark.classList.toggle("chosen", chosen.has(mark.dataset.trial));
    for (const row of rows) {
      const is = chosen.has(row.dataset.trial);
      row.classList.toggle("chosen", is);
      row.hidden = hidesOthers && chosen.size > 0 && !is;
      row.cells[0].firstElementChild.checked = is;
    }
    const words = chosen.size === 1 ? "1 trial selected" : `${chosen.size} trials selected`;
    status.textContent = chosen.size === 0 ? "No trial selected." : `${words}.`;
    document.getElementById("compare").disabled = chosen.size < 2 || chosen.size > MOST_COMPARED;
    const hash = chosen.size > 0 && chosen.size <= 50 ? `#chosen=${[...chosen].join(",")}` : "";
    history.replaceState(null, "", `${location.pathname}${location.search}${hash}`);
  }

  function choose(found) {
    const how = document.querySelector("input[name=how]:checked").value;
    if (how === "also") chosen = new Set([...chosen, ...found]);
    else if (how === "within" && chosen.size > 0) chosen = new Set([...found].filter((one) => chosen.has(one)));
    else chosen = new Set(found);
    hidesOthers = true;
    show();
  }

  function toggle(trial) {
    const next = new Set(chosen);
    if (!next.delete(trial)) next.add(trial);
    chosen = next;
    show();
  }

  document.getElementById("clear").addEventListener("click", () => {
    chosen = new Set();
    hidesOthers = false;
    show();
  });
  table.addEventListener("change", (event) => {
    const row = event.target.closest("tr[data-trial]");
    if (row !== null) toggle(row.dataset.trial);
  });
  for (const figure of root.querySelectorAll("[data-chart]")) chart(figure, { choose, toggle, announcement });

  const before = new URLSearchParams(location.hash.slice(1)).get("chosen");
  if (before !== null) {
    const known = new Set([...marks, ...rows].map((each) => each.dataset.trial));
    chosen = new Set(before.split(",").filter((one) => known.has(one)));
    hidesOthers = chosen.size > 0;
  }
  show();
}

/** The places of a mark that a choice may hold: the middle of a dot, the corners of a line. */
function places(mark) {
  const line = mark.querySelector("polyline");
  if (line !== null) return [...line.points];
  const box = mark.getBBox();
  return [{ x: box.x + box.width / 2, y: box.y + box.height / 2 }];
}

function chart(figure, { choose, toggle, announcement }) {
  const svg = figure.querySelector("svg");
  const marks = [...svg.querySelectorAll("[data-trial]")].map((mark) => ({ mark, at: places(mark) }));
  const brush = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  brush.classList.add("brush");
  let start = null;

  const place = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const edges = (a, b) => [Math.min(a.x, b.x), Math.min(a.y, b.y), Math.max(a.x, b.x), Math.max(a.y, b.y)];

  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = place(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const [left, top, right, bottom] = edges(start, place(event));
    brush.setAttribute("x", left);
    brush.setAttribute("y", top);
    brush.setAttribute("width", right - left);
    brush.setAttribute("height", bottom - top);
    if (!brush.isConnected) svg.append(brush);
  });
  const end = (event) => {
    if (start === null) return;
    const [left, top, right, bottom] = edges(start, place(event));
    start = null;
    brush.remove();
    if (event.type === "pointercancel") return;
    if (right - left < 4 && bottom - top < 4) { // a click, not a drag
      const under = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-trial]");
      if (under && svg.contains(under)) toggle(under.dataset.trial);
      return;
    }
    const within = ({ x, y }) => x >= left && x <= right && y >= top && y <= bottom;
    choose(new Set(marks.filter(({ at }) => at.some(within)).map(({ mark }) => mark.dataset.trial)));
  };
  svg.addEventListener("pointerup", end);
  svg.addEventListener("pointercancel", end);

  // By keys: from mark to mark by where they end at the right, which is their order in the table too.
  const last = ({ at }) => at[at.length - 1];
  const order = [...marks].sort((a, b) => last(a).x - last(b).x || last(b).y - last(a).y);
  let current = -1;
  const go = (to) => {
    order[current]?.mark.classList.remove("at");
    current = Math.max(0, Math.min(order.length - 1, to));
    const { mark } = order[current];
    mark.classList.add("at");
    announcement.textContent = mark.getAttribute("aria-label") ?? mark.querySelector("title")?.textContent ?? `trial ${mark.dataset.trial}`;
  };
  figure.addEventListener("keydown", (event) => {
    if (order.length === 0) return;
    const steps = { ArrowRight: current + 1, ArrowUp: current + 1, ArrowLeft: current - 1, ArrowDown: current - 1, Home: 0, End: order.length - 1 };
    if (event.key in steps) go(steps[event.key]);
    else if (event.key === " " || event.key === "Enter") { if (current >= 0) toggle(order[current].mark.dataset.trial); }
    else if (event.key === "Escape") document.getElementById("clear").click();
    else return;
    event.preventDefault();
  });
  figure.addEventListener("blur", () => order[current]?.mark.classList.remove("at"));
}
