// The review: rows one by one, decided by keys or buttons. Decisions are kept in this browser under the digest of the
// data, and saved as CSV for the next round. Nothing leaves the page.

function setUpWorkbench(section) {
  const data = JSON.parse(document.getElementById("workbench-data").textContent);
  const [bench, subject, queue, progress, count, classes, told] = [
    ".bench", ".subject", ".queue", "progress", ".count", ".classes", ".told",
  ].map((found) => section.querySelector(found));
  const place = "proxbi decisions " + (data.digest || location.pathname);
  const queues = {};
  for (const name of ["suspects", "teaching"]) {
    const list = document.getElementById(name + "-rows");
    queues[name] = list ? itemsOf(list) : [];
  }
  let state = { decisions: {}, skipped: [], history: [] };
  let current = null;

  function recall() {
    try {
      state = JSON.parse(localStorage.getItem(place)) ?? state;
    } catch {
      told.textContent = "This browser keeps nothing for this page: save your decisions before you close it.";
    }
  }

  function keep() {
    try {
      localStorage.setItem(place, JSON.stringify(state));
    } catch {
      // Said when the page was opened.
    }
  }

  const isOpen = (item) => !(item.dataset.row in state.decisions) && !state.skipped.includes(item.dataset.row);
  const nameOf = (label) => "“" + data.labels[label] + "”";

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function show() {
    const items = queues[queue.value];
    const done = items.filter((item) => item.dataset.row in state.decisions).length;
    progress.max = Math.max(1, items.length);
    progress.value = done;
    const skipped = items.filter((item) => state.skipped.includes(item.dataset.row)).length;
    const all = Object.keys(state.decisions).length;
    count.textContent = `${done} of ${items.length} decided` + (skipped ? `, ${skipped} skipped` : "") + `; ${all} decisions in all`;
    current = items.find(isOpen) ?? null;
    subject.replaceChildren();
    for (const button of section.querySelectorAll(".take, .keep, .skip, .choose, .classes")) button.disabled = !current;
    section.querySelector(".undo").disabled = !state.history.length;
    section.querySelector(".download").disabled = !all && !data.decided.length;
    mark();
    if (!current) {
      subject.append(element("p", "Nothing is left here: save the decisions, or go through the other rows."));
      return;
    }
    draw(current);
  }

  function draw(item) {
    const { given, suggested } = item.dataset;
    const picture = item.querySelector("img");
    if (picture) subject.append(picture.cloneNode());
    const words = element("div", undefined, "words-of-row");
    const [[kind, name], ...rest] = shownOf(item);
    words.append(element("h3", `${kind} ${name}`), changeOf(item));
    const why = item.querySelector(".why");
    if (why) words.append(why.cloneNode(true));
    const facts = element("dl");
    for (const [name, value] of rest) {
      const one = element("div");
      one.append(element("dt", name), " ", element("dd", value));
      facts.append(one);
    }
    words.append(facts);
    subject.append(words);
    const same = given === suggested;
    section.querySelector(".take").hidden = same;
    section.querySelector(".take b").textContent = nameOf(suggested);
    section.querySelector(".keep b").textContent = nameOf(given);
    classes.value = "";
  }

  function shownOf(item) {
    // [name, text] of what is shown of a row beside its labels and the reasons.
    const names = item.tagName === "TR" ? Array.from(item.closest("table").tHead.rows[0].cells) : Array.from(item.querySelectorAll("dt"));
    const texts = item.tagName === "TR" ? Array.from(item.cells) : Array.from(item.querySelectorAll("dd"));
    const pairs = names.map((name, place) => [name.textContent, texts[place].textContent, texts[place]]);
    return pairs.filter(([, , cell], place) => place !== 1 && place !== 2 && !cell.classList.contains("because"));
  }

  function changeOf(item) {
    const { given, suggested } = item.dataset;
    const change = element("p", undefined, "change");
    change.append(element("span", data.labels[given], given === suggested ? "" : "was"));
    if (given !== suggested) change.append(" → ", element("strong", data.labels[suggested]));
    else change.append(" (nothing else is suggested)");
    return change;
  }

  function mark() {
    for (const item of Object.values(queues).flat()) {
      const decision = state.decisions[item.dataset.row];
      if (decision) item.dataset.decided = decision.decision;
      else delete item.dataset.decided;
    }
  }

  function decide(decision, label) {
    if (!current) return;
    const row = current.dataset.row;
    state.decisions[row] = { row: Number(row), id: current.dataset.called, decision, label: data.labels[label] };
    state.history.push(row);
    keep();
    show();
    told.textContent = `${state.decisions[row].id}: ${data.labels[label]}`;
  }

  const actions = {
    t: () => current && current.dataset.given !== current.dataset.suggested && decide("take", current.dataset.suggested),
    k: () => current && decide("keep", current.dataset.given),
    o: () => current && classes.focus(),
    s: () => {
      if (!current) return;
      state.skipped.push(current.dataset.row);
      state.history.push(current.dataset.row);
      keep();
      show();
      told.textContent = "skipped";
    },
    u: () => {
      const row = state.history.pop();
      if (row === undefined) return;
      delete state.decisions[row];
      state.skipped = state.skipped.filter((other) => other !== row);
      keep();
      if (!queues[queue.value].some((item) => item.dataset.row === row)) {
        const other = Object.keys(queues).find((name) => queues[name].some((item) => item.dataset.row === row));
        if (other) queue.value = other;
      }
      show();
      told.textContent = "undone";
    },
    d: () => {
      const rows = Object.fromEntries(data.decided.map((one) => [one.row, one]));
      const all = Object.values({ ...rows, ...state.decisions });
      if (!all.length) return;
      const lines = all.map((one) => [String(one.row), one.id, one.decision, one.label, data.digest]);
      saveAs("decisions.csv", asCsv([["row", "id", "decision", "label", "digest"], ...lines]));
      told.textContent = `${all.length} decisions saved as decisions.csv: give them to the next round.`;
    },
  };

  function choose() {
    if (!current || classes.value === "") return;
    const { given, suggested } = current.dataset;
    decide(classes.value === given ? "keep" : classes.value === suggested ? "take" : "other", classes.value);
    bench.focus();
  }

  classes.append(new Option("another class", ""), ...data.labels.map((name, label) => new Option(name, String(label))));
  section.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target === queue) return;
    if (event.target === classes) {
      if (event.key === "Escape") bench.focus();
      if (event.key !== "Enter") return;
      event.preventDefault();
      choose();
      return;
    }
    const action = actions[event.key.toLowerCase()];
    if (!action) return;
    event.preventDefault();
    action();
  });
  const buttons = { take: "t", keep: "k", skip: "s", undo: "u", download: "d" };
  for (const [name, key] of Object.entries(buttons)) section.querySelector("." + name).addEventListener("click", actions[key]);
  section.querySelector(".choose").addEventListener("click", choose);
  queue.addEventListener("change", show);
  const start = document.querySelector("a.start");
  start?.addEventListener("click", () => setTimeout(() => bench.focus()));
  for (const option of Array.from(queue.options)) if (!queues[option.value].length) option.remove();
  section.hidden = false;
  recall();
  show();
}

document.querySelectorAll(".workbench").forEach(setUpWorkbench);
