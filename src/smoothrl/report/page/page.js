"use strict";
(function () {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  button.addEventListener("click", function () {
    const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });
  const table = document.getElementById("table");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  const names = heads.map((cell) => cell.textContent.trim());
  const search = document.getElementById("search");
  const selects = Array.from(document.querySelectorAll("select[data-column]"));
  const count = document.getElementById("count");

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const cells = Array.from(row.cells);
      const texts = cells.map((cell) => cell.textContent.toLowerCase());
      const keys = cells.map((cell) => String(cell.dataset.key).toLowerCase());
      const found = words.every((word) => texts.some((t) => t.includes(word)) || keys.includes(word));
      const chosen = selects.every((s) => !s.value || cells[names.indexOf(s.dataset.column)].textContent === s.value);
      row.hidden = !(found && chosen);
      if (!row.hidden) shown += 1;
    }
    count.textContent = shown + " of " + rows.length + " rows";
  }

  function compare(a, b) {
    const x = Number(a), y = Number(b);
    if (!Number.isNaN(x) && !Number.isNaN(y) && a !== "" && b !== "") return x - y;
    return a < b ? -1 : a > b ? 1 : 0;
  }

  function plain(key) {
    return key === "-inf" ? "-Infinity" : key;
  }

  heads.forEach(function (head, index) {
    head.addEventListener("click", function () {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sorted = rows.slice().sort(function (a, b) {
        const order = compare(plain(a.cells[index].dataset.key), plain(b.cells[index].dataset.key));
        return down ? -order : order;
      });
      body.append(...sorted);
    });
  });
  search.addEventListener("input", filter);
  selects.forEach((s) => s.addEventListener("change", filter));
  filter();
})();
