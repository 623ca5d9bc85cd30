"""How long report.html takes to open: synthetic answers, headless Chromium.

    python benchmarks/report_page.py                        # 8,115 questions, 5 answers of 1,500 characters
    python benchmarks/report_page.py --max-bytes 200000000  # all in one file

Prints, for each of three openings, when the first answers are shown, when the file is read, and how long
a search of all texts takes. Needs chromium, chromedriver and selenium.
"""

import argparse
import random
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from selenium import webdriver

from xyreward.evaluation import Evaluation, Row
from xyreward.items import Item
from xyreward.report import build_report
from xyreward.report_page import MAX_BYTES, write_page
from xyreward.testing import make_item
from xyreward.verdict import FOCUS_VALUES, LabelProbabilities, Labels

SOURCES = ("stackoverflow", "stackexchange", "curated", "wikihow")
SEARCH = """
const done = arguments[arguments.length - 1];
const started = performance.now();
const field = document.getElementById("filter-search");
field.value = "nowhere to be found";
field.dispatchEvent(new Event("input"));
const timer = setInterval(() => {
  if (!document.getElementById("count").textContent.startsWith("0 of")) return;
  clearInterval(timer);
  done(performance.now() - started);
}, 10);
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=8_115)
    parser.add_argument("--policies", type=int, default=5)
    parser.add_argument("--characters", type=int, default=1_500)
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES)
    asked = parser.parse_args()
    rng = random.Random(0)
    words = (Path(__file__).parent.parent / "docs/statistics.md").read_text("utf-8").split()

    def text(characters: int) -> str:
        return " ".join(rng.choices(words, k=characters // 4))[:characters]

    items = [
        make_item(id=f"item-{i}", query=text(600), source=rng.choice(SOURCES))
        for i in range(asked.items)
    ]

    def row(item: Item) -> Row:
        labels = Labels(
            rng.random() < 0.8,
            rng.random() < 0.6,
            rng.choice(FOCUS_VALUES),
            rng.random() < 0.5,
        )
        p = LabelProbabilities.certain(labels)
        return Row(
            item.id, item.kind, item.source, item.domain, item.language, item.id,
            answer=text(asked.characters), answer_tokens=300, truncated=False,
            verdict={**asdict(labels), "p": {**asdict(p), "focus": dict(p.focus)}},
            reward=0.5, soft_reward=rng.random(),
        )  # fmt: skip

    names = ["before", "after", *(f"other{i}" for i in range(asked.policies))][: asked.policies]
    evaluations = {
        name: Evaluation(name, tuple(map(row, items)), "j", "v", ("writing",)) for name in names
    }
    report = build_report(evaluations["before"], evaluations.get("after"))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        files = write_page(Path(folder), report, evaluations, items, max_bytes=asked.max_bytes)
        size = sum(file.stat().st_size for file in files) / 1e6
        print(
            f"{len(files)} files, {size:.1f} MB, written in {time.perf_counter() - started:.1f} s"
        )
        open_it(files[0].as_uri(), folder)


def open_it(url: str, folder: str) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.page_load_strategy = "none"
    for argument in ("headless", "no-sandbox", "disable-gpu", f"user-data-dir={folder}/chromium"):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    try:
        for _ in range(3):
            print(opened(driver, url))
    finally:
        driver.quit()


def opened(driver: Any, url: str) -> str:
    driver.get("about:blank")
    started = time.perf_counter()
    driver.get(url)
    shown = None
    while True:
        there, whole = driver.execute_script(
            "return [!!document.querySelector('#answer .side .text'), document.readyState === 'complete']"
        )
        now = time.perf_counter() - started
        shown = now if there and shown is None else shown
        if shown is not None and whole:
            search = driver.execute_async_script(SEARCH) / 1000
            return f"answers shown after {shown:.2f} s, file read after {now:.2f} s, search {search:.2f} s"
        time.sleep(0.02)


if __name__ == "__main__":
    main()
