"use strict";
// Tables of rows to look at: sorted by a click on a head, filtered by text and by class, copied as CSV. Without this
// script they are plain tables, and the controls stay hidden.

function valueOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent;
}

function compare(numeric) {
  // Missing values are last in either direction: `sign` turns only the others round.
  return (a, b, sign) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return sign * (numeric ? Number(a) - Number(b) : a < b ? -1 : a > b ? 1 : 0);
  };
}

function sortBy(table, head) {
  const ascending = head.ariaSort !== "ascending";
  const order = compare(head.classList.contains("number"));
  const body = table.tBodies[0];
  const keyed = Array.from(body.rows, (row) => [valueOf(row, head.cellIndex), row]);
  keyed.sort(([a], [b]) => order(a, b, ascending ? 1 : -1));
  body.append(...keyed.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.ariaSort = ascending ? "ascending" : "descending";
}

function shownRows(table) {
  return Array.from(table.tBodies[0].rows).filter((row) => !row.hidden);
}

function quoted(value) {
  // A spreadsheet would run a cell such as =cmd() as a formula; after an apostrophe it is text. Numbers may be negative.
  const safe = /^[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? "'" + value : value;
  return /[",\r\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
}

function toCsv(table) {
  const heads = Array.from(table.tHead.rows[0].cells).filter((head) => !head.classList.contains("picture"));
  const lines = [heads.map((head) => head.textContent)];
  for (const row of shownRows(table)) lines.push(heads.map((head) => valueOf(row, head.cellIndex)));
  return lines.map((line) => line.map(quoted).join(",") + "\n").join("");
}

function setUp(section) {
  const table = section.querySelector("table");
  const [text, classes, copy, said, box] = ["input", "select", "button.copy", ".said", "textarea"].map((found) =>
    section.querySelector(found),
  );

  function filter() {
    const wanted = text.value.trim().toLowerCase();
    for (const row of table.tBodies[0].rows) {
      const ofClass = !classes.value || [row.dataset.given, row.dataset.suggested].includes(classes.value);
      row.hidden = !ofClass || !row.textContent.toLowerCase().includes(wanted);
    }
    said.textContent = `${shownRows(table).length} of ${table.tBodies[0].rows.length} rows`;
    box.hidden = true;
  }

  async function copyRows() {
    const csv = toCsv(table);
    try {
      await navigator.clipboard.writeText(csv);
      box.hidden = true;
      said.textContent = `${shownRows(table).length} rows copied`;
    } catch {
      // Some browsers keep the clipboard from pages that were opened as files: let the reader copy by hand.
      box.hidden = false;
      box.value = csv;
      box.select();
      said.textContent = "copy the text below";
    }
  }

  for (const head of table.tHead.querySelectorAll("th:not(.picture)")) {
    // No <button>: Chromium leaves those out of heads that it repeats on the next printed page.
    head.addEventListener("click", () => sortBy(table, head));
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sortBy(table, head);
    });
  }
  text.addEventListener("input", filter);
  classes.addEventListener("change", filter);
  copy.addEventListener("click", copyRows);
  section.querySelector(".controls").hidden = false;
  filter();
}

document.querySelectorAll("section.review").forEach(setUp);
