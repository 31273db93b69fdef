"""The report as a workbench, in a real browser and by keyboard alone: rows are decided, progress is kept, decisions are
saved, and the next round takes them.
"""

import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.stand_in import using

import browser
import cleaned_example
from cleaned_example import everything, evil, report
from proxbi.cleaning.files.decisions import Subject, read_decisions, unguarded
from proxbi.cleaning.files.job import Outputs, clean_file
from proxbi.cleaning.files.tables import Roles
from proxbi.cleaning.report.review import suspects

pytestmark = pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium is installed")
CODES = {"Tab": 9, "Enter": 13, "ArrowDown": 40, "Escape": 27}


@pytest.fixture
def tab(tmp_path_factory):
    """A browser of its own: what one test keeps in it, no other finds."""
    with browser.running(tmp_path_factory.mktemp("profile")) as running:
        yield running


def press(tab: browser.Browser, *keys: str) -> None:
    """As a keyboard does: Enter follows links, Tab moves the focus."""
    for key in keys:
        named = {"key": key, "windowsVirtualKeyCode": CODES.get(key, ord(key[0].upper()))}
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        tab.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        tab.call("Input.dispatchKeyEvent", type="keyUp", **named)


def start(tab: browser.Browser) -> None:
    """Press Tab until the link to the review has the focus, and follow it."""
    for _ in range(20):
        press(tab, "Tab")
        if tab.evaluate("document.activeElement.className") == "start":
            break
    press(tab, "Enter")
    tab.evaluate("new Promise((done) => setTimeout(done))")
    assert tab.evaluate("document.activeElement.className") == "bench"


def subject(tab: browser.Browser) -> str:
    return tab.evaluate("document.querySelector('.subject h3')?.textContent ?? ''")


def saved(tab: browser.Browser, folder: Path) -> list[dict[str, str]]:
    """Press D, and read the file that the browser puts into the folder."""
    tab.call("Browser.setDownloadBehavior", session=False, behavior="allow", downloadPath=str(folder))
    press(tab, "d")
    until = time.monotonic() + browser.PATIENCE
    path = folder / "decisions.csv"
    while not path.exists() and time.monotonic() < until:
        tab.evaluate("new Promise((done) => setTimeout(done, 20))")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def opened(tab: browser.Browser, folder: Path, **changed: Any) -> browser.Browser:
    report(folder, **changed)
    tab.open(folder / "report.html")
    start(tab)
    return tab


def test_every_key_does_what_it_says_and_progress_is_kept(tab, tmp_path):
    given = everything()
    cleaned, labels = given["cleaned"], given["labels"]
    first, second, third, fourth = suspects(cleaned, 4).tolist()
    opened(tab, tmp_path)
    assert subject(tab) == f"id id-{first}"
    press(tab, "t")
    assert subject(tab) == f"id id-{second}"
    press(tab, "k", "s", "u")  # the third is skipped, and comes back
    assert subject(tab) == f"id id-{third}"
    other = next(k for k in range(10) if k not in (given["given"][third], cleaned.suggested[third]))
    press(tab, "o")
    tab.evaluate(f"document.querySelector('.classes').value = '{other}'")
    press(tab, "Enter")
    assert subject(tab) == f"id id-{fourth}"
    tab.open(tmp_path / "report.html")  # again: nothing is lost
    start(tab)
    assert subject(tab) == f"id id-{fourth}"
    press(tab, "u", "u", "u")
    assert subject(tab) == f"id id-{first}"
    press(tab, "t", "k", "s")
    rows = saved(tab, tmp_path)
    assert {row["row"] for row in rows} == {str(first), str(second)}  # the skipped one is not decided
    by_row = {int(row["row"]): row for row in rows}
    assert by_row[first]["decision"] == "take"
    assert by_row[first]["label"] == labels[cleaned.suggested[first]]
    assert by_row[second]["decision"] == "keep"
    assert by_row[second]["label"] == labels[given["given"][second]]
    assert {row["digest"] for row in rows} == {given["run"].digest}
    assert tab.complaints() == []
    assert all(not address.startswith("http") for address in tab.requests())


def test_keys_elsewhere_decide_nothing(tab, tmp_path):
    report(tmp_path)
    tab.open(tmp_path / "report.html")
    press(tab, "t", "k", "s")
    assert tab.evaluate("document.querySelectorAll('[data-decided]').length") == 0


def test_what_is_decided_stays_text(tab, tmp_path):
    """Labels and ids with markup, formulas and newlines come back as they were, and run nowhere."""
    made = evil()
    labels = [f"={k}\n<b>{name}" for k, name in enumerate(made["labels"])]
    ids = [f"'+{k}\n{cleaned_example.EVIL}" for k in range(600)]
    opened(tab, tmp_path, **(made | {"labels": labels, "ids": ids}))
    press(tab, "t", "k")
    rows = saved(tab, tmp_path)
    given = np.array(labels, object)[made["given"]]
    assert all(row["label"].startswith("'=") and row["id"].startswith("''+") for row in rows)
    assert {unguarded(row["id"]) for row in rows} == {ids[int(row["row"])] for row in rows}
    about = Subject("data.csv", made["run"].digest, given, ids)
    decided = read_decisions(tmp_path / "decisions.csv", about)
    worst = suspects(made["cleaned"], 2).tolist()
    assert sorted(worst) == decided.rows.tolist()
    assert tab.evaluate("[document.scripts.length, typeof window.hacked]") == [2, "undefined"]
    assert tab.complaints() == []


def test_from_the_page_to_the_second_round(tab, tmp_path):
    """The command, the page, keys, the file of decisions, the command again; and its page starts from them."""
    data = cleaned_example.digits()
    frame = pd.DataFrame(data.images.reshape(600, -1)).rename(columns="p{}".format)
    frame["digit"] = [f"n{k}" for k in data.given]
    frame.to_csv(tmp_path / "data.csv", index=False)

    def clean(**more):
        outputs = Outputs(tmp_path / "cleaned.csv", tmp_path / "report.html", tmp_path / "summary.json")
        with using("stand-in"):
            return clean_file(tmp_path / "data.csv", Roles("digit"), outputs, **more)

    job = clean()
    tab.open(tmp_path / "report.html")
    start(tab)
    press(tab, "t", "t", "k")
    rows = saved(tab, tmp_path)
    assert len(rows) == 3
    again = clean(decisions=tmp_path / "decisions.csv")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["trusted"], summary["decided"], summary["rows"]) == (3, 3, 597)
    decided = [int(row["row"]) for row in rows]
    assert np.flatnonzero(again.cleaned.trusted).tolist() == sorted(decided)
    cleaned = pd.read_csv(tmp_path / "cleaned.csv")
    for row in rows:
        line = cleaned.iloc[int(row["row"])]
        assert line["proxbi_suggested_label"] == row["label"]
        assert line["proxbi_issue"] == (row["decision"] == "take")
        assert line["proxbi_weight"] == (0 if row["decision"] == "take" else 1)
    # The second page, in a browser that knows nothing of the first, saves the old decisions with the new ones.
    tab.evaluate("localStorage.clear()")
    (tmp_path / "decisions.csv").unlink()
    tab.open(tmp_path / "report.html")
    start(tab)
    press(tab, "k")
    assert {row["row"] for row in saved(tab, tmp_path)} > {str(row) for row in decided}
    assert int(np.sum(job.cleaned.issue)) > int(np.sum(again.cleaned.issue)) - 3
    assert tab.evaluate("document.querySelector('.told').textContent").startswith("4 decisions saved")
