"use strict";
// Shows what a mark of a chart reports next to it, also when it is reached by keys.
(() => {
  const tip = document.createElement("div");
  tip.className = "chart-tip";
  tip.hidden = true;
  document.body.append(tip);

  const show = (event) => {
    const mark = event.target.closest ? event.target.closest(".chart .mark") : null;
    const title = mark === null ? null : mark.querySelector("title");
    if (title !== null) { // or the browser would show it as well
      mark.setAttribute("aria-label", title.textContent);
      title.remove();
    }
    const text = mark === null ? null : mark.getAttribute("aria-label");
    tip.hidden = text === null;
    if (tip.hidden) return;
    tip.textContent = text;
    const box = mark.getBoundingClientRect();
    const [x, y] = event.type === "focusin" ? [box.right, box.top] : [event.clientX, event.clientY];
    const left = Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8);
    const above = y - tip.offsetHeight - 10;
    tip.style.setProperty("left", `${Math.max(8, left)}px`);
    tip.style.setProperty("top", `${above < 0 ? y + 18 : above}px`);
  };
  document.addEventListener("mousemove", show);
  document.addEventListener("focusin", show);
})();
