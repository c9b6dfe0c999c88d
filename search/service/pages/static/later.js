// Parts of a page that take a while: each is a part of another page, and comes when this one is there.
for (const place of document.querySelectorAll("[data-from]")) {
  fetch(place.dataset.from, { headers: { accept: "text/html" } }).then(async (answer) => {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const part = page.querySelector(place.dataset.part);
    if (answer.ok && part !== null) place.replaceChildren(...part.childNodes);
  }).catch(() => {}); // its link stays
}
