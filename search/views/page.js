"use strict";
// What a reader without scripts does not miss: the page is whole before this runs.
(() => {
  const AT_ONCE = 100;

  const key = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.value;
    return value === undefined ? cell.textContent : Number(value);
  };
  const compare = (a, b, sign) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // nothing comes last, either way
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };

  for (const table of document.querySelectorAll("table.long")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    let shown = AT_ONCE;
    let wanted = "";

    const tools = document.createElement("div");
    tools.className = "tools";
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.type = "search";
    label.append("Filter: ", input);
    const count = document.createElement("span");
    count.setAttribute("role", "status");
    const more = document.createElement("button");
    more.type = "button";
    more.textContent = "show all";
    tools.append(label, count, more);
    table.parentElement.before(tools);

    const update = () => {
      const fitting = [...body.rows].filter((row) => row.textContent.toLowerCase().includes(wanted));
      const visible = new Set(fitting.slice(0, shown));
      for (const row of body.rows) row.hidden = !visible.has(row);
      count.textContent = `${visible.size} of ${rows.length} rows`;
      more.hidden = visible.size === fitting.length;
    };
    const showAll = () => { shown = rows.length; update(); };
    input.addEventListener("input", () => { wanted = input.value.trim().toLowerCase(); update(); });
    more.addEventListener("click", showAll);
    window.addEventListener("beforeprint", showAll);
    const follow = () => {
      const row = document.getElementById(location.hash.slice(1));
      if (row !== null && body.contains(row) && row.hidden) { showAll(); row.scrollIntoView(); }
    };
    window.addEventListener("hashchange", follow);

    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const ascending = heading.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        const sign = ascending ? 1 : -1;
        body.append(...[...body.rows].sort((a, b) => compare(key(a, column), key(b, column), sign)));
        update();
      });
    });
    update();
    follow();
  }
})();
