"use strict";
// Lists of rows to look at: sorted by a click on a head, filtered by text and by class, copied and saved as CSV. Without
// this script they are plain tables and galleries, and the controls stay hidden.

function itemsOf(section) {
  return Array.from(section.querySelectorAll(".item"));
}

function valueOf(cell) {
  return cell.dataset.value ?? cell.textContent;
}

function factsOf(item) {
  // [name, value] of all that is shown of a row.
  if (item.tagName === "TR") {
    const heads = item.closest("table").tHead.rows[0].cells;
    return Array.from(item.cells, (cell) => [heads[cell.cellIndex].textContent, valueOf(cell)]);
  }
  const facts = Array.from(item.querySelectorAll("dt"), (name) => [name.textContent, valueOf(name.nextElementSibling)]);
  return [...facts, ["why", Array.from(item.querySelectorAll(".why li"), (line) => line.textContent).join(" ")]];
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
  const keyed = Array.from(body.rows, (row) => [valueOf(row.cells[head.cellIndex]), row]);
  keyed.sort(([a], [b]) => order(a, b, ascending ? 1 : -1));
  body.append(...keyed.map(([, row]) => row));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.ariaSort = ascending ? "ascending" : "descending";
}

function guarded(value) {
  // A spreadsheet would run a cell such as =cmd() as a formula; after an apostrophe it is text. Numbers may be negative.
  // One that begins with an apostrophe gets another, so that taking one off gives back what was there.
  const number = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
  return /^['=+\-@\t\r\n]/.test(value) && !number.test(value) ? "'" + value : value;
}

function quoted(value) {
  const safe = guarded(value);
  return /[",\r\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
}

function asCsv(lines) {
  return lines.map((line) => line.map(quoted).join(",") + "\n").join("");
}

function saveAs(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function setUp(section) {
  const table = section.querySelector("table");
  const [text, classes, copy, save, said, box] = ["input", "select", ".copy", ".save", ".said", "textarea"].map((found) =>
    section.querySelector(found),
  );
  const shown = () => itemsOf(section).filter((item) => !item.hidden);

  function toCsv() {
    const facts = shown().map(factsOf);
    const heads = facts.length ? facts[0].map(([name]) => name) : [];
    return asCsv([heads, ...facts.map((line) => line.map(([, value]) => value))]);
  }

  function filter() {
    const wanted = text.value.trim().toLowerCase();
    for (const item of itemsOf(section)) {
      const ofClass = !classes.value || [item.dataset.given, item.dataset.suggested].includes(classes.value);
      item.hidden = !ofClass || !item.textContent.toLowerCase().includes(wanted);
    }
    said.textContent = `${shown().length} of ${itemsOf(section).length} rows`;
    box.hidden = true;
  }

  async function copyRows() {
    const csv = toCsv();
    try {
      await navigator.clipboard.writeText(csv);
      box.hidden = true;
      said.textContent = `${shown().length} rows copied`;
    } catch {
      // Some browsers keep the clipboard from pages that were opened as files: let the reader copy by hand.
      box.hidden = false;
      box.value = csv;
      box.select();
      said.textContent = "copy the text below";
    }
  }

  for (const head of table ? table.tHead.querySelectorAll("th:not(.because)") : []) {
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
  save.addEventListener("click", () => saveAs(section.id.replace("-rows", ".csv"), toCsv()));
  section.querySelector(".controls").hidden = false;
  filter();
}

document.querySelectorAll(".review").forEach(setUp);

for (const button of document.querySelectorAll(".copy-command")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const command = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(command);
      button.textContent = "selected";
    }
  });
}
