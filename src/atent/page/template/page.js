"use strict";
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // Tables: a button in each head sorts by its column, numbers by their value.
  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const numbers = [...body.rows].every((row) => !row.cells[column].textContent || row.cells[column].dataset.value);
        const value = (row) => {
          const cell = row.cells[column];
          return numbers ? Number(cell.dataset.value ?? -Infinity) : cell.textContent;
        };
        const order = (a, b) => (numbers ? value(a) - value(b) : value(a).localeCompare(value(b), "en", { numeric: true }));
        body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
      });
    });
  }

  // Gallery: choose a class, and broken or withstood images.
  for (const gallery of all(".gallery")) {
    const box = gallery.previousElementSibling;
    const items = all("li", gallery);
    const choices = {};
    const status = document.createElement("span");
    status.className = "quiet";
    status.setAttribute("role", "status");
    const update = () => {
      const shown = items.filter((item) => Object.entries(choices).every(([key, one]) => !one.value || item.dataset[key] === one.value));
      items.forEach((item) => { item.hidden = !shown.includes(item); });
      status.textContent = `${shown.length} of ${items.length} images`;
    };
    for (const [key, words] of [["broken", "Under attack"], ["class", "Class"]]) {
      const label = document.createElement("label");
      const select = document.createElement("select");
      select.append(new Option("all", ""), ...[...new Set(items.map((item) => item.dataset[key]))].sort().map((name) => new Option(name, name)));
      label.append(words, select);
      box.append(label);
      choices[key] = select;
      select.addEventListener("change", update);
    }
    box.append(status);
    box.hidden = false;
    update();
  }

  // Figures: the value of the point under the pointer, at once.
  const bubble = document.createElement("div");
  bubble.className = "bubble";
  bubble.hidden = true;
  bubble.setAttribute("aria-hidden", "true");
  document.body.append(bubble);
  for (const point of all(".tip")) {
    const words = point.querySelector("title").textContent;
    point.querySelector("title").remove();
    point.addEventListener("pointerenter", (event) => {
      bubble.textContent = words;
      bubble.hidden = false;
      const left = Math.min(event.pageX + 12, window.scrollX + document.documentElement.clientWidth - bubble.offsetWidth - 8);
      bubble.style.left = `${Math.max(left, 8)}px`;
      bubble.style.top = `${event.pageY + 14}px`;
    });
    point.addEventListener("pointerleave", () => { bubble.hidden = true; });
  }

  // Print: open what is folded.
  window.addEventListener("beforeprint", () => all("details").forEach((one) => { one.open = true; }));
})();
