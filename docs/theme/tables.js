// Tables sort by a click on a column; long ones have a box that keeps the rows with all of its words.
"use strict";

const LONG = 12;
// Letters of a line that stays whole.
const SHORT = 24;

// Columns from which a table gets the width of the page.
const WIDE = 7;
// Cells of lengths from which something wins: below each number, and above.
const WORDS = { always: -Infinity, never: Infinity };

/** What a cell sorts by: its leading number, or its text in small letters; null for an empty cell. */
function valueOf(cell) {
  const text = cell.textContent.trim().toLowerCase();
  const number = WORDS[text.split(" ")[0]] ?? Number.parseFloat(text.replaceAll(",", ""));
  return text === "" ? null : Number.isNaN(number) ? text : number;
}

function compare(a, b) {
  if (typeof a !== "number" || typeof b !== "number") return String(a).localeCompare(String(b));
  return a === b ? 0 : a - b;
}

function sortBy(table, column, ascending) {
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[column]), row]);
  // Empty cells stay last in both orders.
  rows.sort(([a], [b]) => (a === null) - (b === null) || (ascending ? compare(a, b) : compare(b, a)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = document.createElement("button");
    button.className = "sort";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const ascending = cell.ariaSort !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
      cell.ariaSort = ascending ? "ascending" : "descending";
      sortBy(table, column, ascending);
    });
  });
}

function makeFilterable(table) {
  const rows = [...table.tBodies[0].rows];
  const box = document.createElement("input");
  box.className = "filter md-input";
  box.type = "search";
  box.placeholder = `Filter ${rows.length} rows`;
  box.ariaLabel = box.placeholder;
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  // The theme lets a wide table scroll in a frame, beside which the box stays.
  (table.closest(".md-typeset__scrollwrap") ?? table).before(box);
}

for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const [count, columns] = [table.tBodies[0].rows.length, table.tHead.rows[0].cells.length];
  // The header of a long table stays in sight in a frame that scrolls, which the theme may add later.
  table.toggleAttribute("data-long", count >= LONG);
  if (columns >= WIDE) document.querySelector(".md-main__inner").classList.add("wide-page");
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  // A table without names of columns tells facts of one thing.
  if ([...table.tHead.rows[0].cells].every((cell) => cell.textContent.trim())) makeSortable(table);
  if (count >= LONG) makeFilterable(table);
  const cells = [...table.querySelectorAll("td")];
  // Reads the layout of all cells before it changes any.
  const short = cells.map((cell) => cell.innerText.split("\n").every((line) => line.length <= SHORT));
  cells.forEach((cell, i) => {
    cell.toggleAttribute("data-short", short[i]);
    cell.dataset.label = names[cell.cellIndex];
  });
  // On a phone, columns of sentences stand below each other.
  const long = new Set(cells.filter((_, i) => !short[i]).map((cell) => cell.cellIndex));
  table.toggleAttribute("data-stacked", long.size > 1 && columns > 2 && columns < WIDE);
}
