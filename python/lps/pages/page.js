"use strict";
// Sorts a table by the column of the pressed heading, and copies a table as tab-separated text. Without this the page
// is complete, but for the two.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const table = heading.closest("table");
    const column = heading.cellIndex;
    const down = heading.getAttribute("aria-sort") === "descending" ? 1 : -1;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down < 0 ? "descending" : "ascending");
    const value = (row) => {
      const text = row.cells[column].textContent.trim();
      const number = parseFloat(text.replace(/,/g, ""));
      return Number.isNaN(number) ? text : number;
    };
    const missing = (found) => (found === "-" ? 1 : 0);
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (missing(x) !== missing(y)) return missing(x) - missing(y);
      if (typeof x === "number" && typeof y === "number") return down * (x - y);
      return down * String(x).localeCompare(String(y));
    });
    table.tBodies[0].append(...rows);
  });
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const table = document.getElementById(button.dataset.table);
    const text = [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()).join("\t")).join("\n");
    const status = document.getElementById("status");
    try {
      await navigator.clipboard.writeText(text);
      status.textContent = "The table is copied.";
    } catch {
      const range = document.createRange();
      range.selectNode(table);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      status.textContent = "The table is selected; copy it with the keyboard.";
    }
  });
}
