// Tables sort by a click on a column; long ones have a box that keeps the rows with all of its words.
"use strict";

const LONG = 12;
// Letters of a line that stays whole.
const SHORT = 24;

/** What a cell sorts by: its leading number, or its text in small letters; null for an empty cell. */
function valueOf(cell) {
  const text = cell.textContent.trim();
  const number = Number.parseFloat(text.replaceAll(",", ""));
  return text === "" ? null : Number.isNaN(number) ? text.toLowerCase() : number;
}

function compare(a, b) {
  return typeof a === typeof b && typeof a === "number" ? a - b : String(a).localeCompare(String(b));
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
  const count = table.tBodies[0].rows.length;
  // A table without names of columns tells facts of one thing.
  if ([...table.tHead.rows[0].cells].every((cell) => cell.textContent.trim())) makeSortable(table);
  if (count >= LONG) makeFilterable(table);
  for (const cell of table.querySelectorAll("td")) {
    cell.toggleAttribute("data-short", cell.innerText.split("\n").every((line) => line.length <= SHORT));
  }
}
