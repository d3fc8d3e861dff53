"""The page of a run in a browser: what a reader sees of a job that runs, fails, is stopped or has died."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import Launch, Started
from tests.page.conftest import OpenPage

#: Prints steps until it is stopped, or fails after as many as its argument says.
PROGRAM = """\
import itertools, json, os, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
print("<script>document.title = 'taken over'</script>\\x1b[31mred\\x1b[0m", flush=True)
for step in itertools.count():
    loss = "nan" if task == {"type": "worker", "index": 2} and step > 9 else f"{1 / (step + 1):.4f}"
    print(f"step {step} loss {loss}", flush=True)
    time.sleep(1 if task["index"] == 0 and "slow" in sys.argv else 0.05)
    if step == 20 and "fail" in sys.argv:
        raise ValueError("no <b>data</b>")
"""
WIDTHS = (375, 1280, 2560)
#: Finds the texts whose contrast to the background behind them is below what WCAG AA demands.
FIND_FAINT_TEXTS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = channels(getComputedStyle(node).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const node of document.querySelectorAll("body *")) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!hasText || !node.checkVisibility()) continue;
    const style = getComputedStyle(node), isLarge = parseFloat(style.fontSize) >= 24;
    const [high, low] = [light(channels(style.color)), light(ground(node))].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < (isLarge ? 3 : 4.5)) faint.push(`${node.textContent.slice(0, 40)}: ${contrast}`);
  }
  return faint;
}"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return str(file)


def started(launch: Launch, *words: str) -> Started:
    """Start a run called job, and wait until there are samples of it."""
    earlier = {*launch.state.glob("*/samples.jsonl")}
    job = launch.start("--name", "job", "-q", *words)
    return job.until(lambda it: {*launch.state.glob("*/samples.jsonl")} - earlier)


def row(page: Page, task: str) -> Locator:
    """The row of a task in the table."""
    return page.locator("#tasks tbody tr").filter(has=page.get_by_role("button", name=task, exact=True))


def pid_of(launch: Launch, run: str, task: str) -> int:
    """The pid of a task that runs."""
    tasks = json.loads(launch("ps", "--json", run, code=0).out)
    return next(int(fields["pid"]) for fields in tasks if fields["task"] == task)


@pytest.mark.promise("a browser shows each event of a job, and runs nothing that a task prints")
def test_a_job_that_runs(launch: Launch, open_page: OpenPage, program: str):
    job = started(launch, "--workers", "3", "--restarts", "1", program)
    page = open_page("job")
    expect(row(page, "worker/1")).to_contain_text("running")
    expect(page.locator("h1.warn")).to_contain_text("worker/2")  # its loss is nan
    expect(page.locator("#graphs canvas").first).to_be_visible()
    row(page, "worker/1").get_by_role("button").click()
    expect(page.locator("#log")).to_contain_text("<script>document.title = 'taken over'</script>red")

    os.kill(pid_of(launch, "job", "worker/1"), signal.SIGKILL)
    expect(page.locator("#latest")).to_contain_text("SIGKILL")
    expect(row(page, "worker/1").locator("td").nth(2)).to_have_text("2")

    page.get_by_role("button", name="Stop").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.locator("#verdict")).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Stop…", exact=True)).to_be_hidden()
    assert "taken over" not in page.title()
    job.wait(code=143)


def test_a_job_that_has_failed(launch: Launch, open_page: OpenPage, program: str):
    launch("--workers", "2", program, "fail", code=1)
    page = open_page("latest", share=True)
    expect(page.locator("h1.bad")).to_contain_text("failed")
    expect(page.locator("#failure")).to_contain_text("ValueError: no <b>data</b>")
    expect(page.locator("#tasks tr.bad").first).to_contain_text("failed")
    page.locator("#log-search").fill("step 1")
    expect(page.locator("#log-found")).to_contain_text("11 lines")
    page.locator("#log-search").press("Escape")
    expect(page.locator("#log")).to_contain_text("ValueError")
    assert not page.get_by_role("button", name="Stop").count()  # who only reads has none


@pytest.mark.long
@pytest.mark.promise("the page is used by keyboard alone, dark and light, at any width")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_text_can_be_read(launch: Launch, open_page: OpenPage, program: str, width: int, scheme: str):
    launch("--workers", "3", program, "fail", code=1)
    page = open_page("latest", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(FIND_FAINT_TEXTS) == []
    job = started(launch, "--workers", "3", program)
    page = open_page("job", width, scheme)
    expect(page.locator("h1.warn")).to_contain_text("worker/2")
    expect(page.locator("#graphs canvas").first).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(FIND_FAINT_TEXTS) == []
    job.stop(signal.SIGTERM)


@pytest.mark.long
@pytest.mark.promise("the page is used by keyboard alone, dark and light, at any width")
def test_the_keyboard_alone(launch: Launch, open_page: OpenPage, program: str):
    job = started(launch, "--workers", "3", program)
    page = open_page("job")
    expect(page.locator("h1.warn")).to_contain_text("worker/2")
    reached = []
    focused = page.locator(":focus")
    for _ in range(60):
        page.keyboard.press("Tab")
        if not focused.count():
            break
        reached.append(focused.evaluate("node => node.id || node.textContent.trim() || node.className"))
        assert focused.evaluate("node => parseFloat(getComputedStyle(node).outlineWidth)") >= 2
    for name in ("Stop…", "filter", "tasks-view", "Step", "worker/1", "log-task", "log", "look-stacks"):
        assert name in reached

    page.locator("#filter").focus()
    page.keyboard.type("worker/1")
    expect(page.locator("#tasks tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("#tasks tbody tr")).to_have_count(3)
    page.get_by_role("columnheader", name="Task").get_by_role("button").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#tasks tbody tr").first).to_contain_text("worker/2")
    expect(page.locator("th[aria-sort=descending]")).to_have_count(1)

    page.get_by_role("button", name="Restart").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="Restart").focus()
    page.keyboard.press("Enter")
    page.locator("#question-tasks").select_option("worker/0")
    page.locator("#confirm").focus()
    page.keyboard.press("Enter")
    expect(row(page, "worker/0").locator("td").nth(2)).to_have_text("2")
    page.locator("#look-stacks").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#stacks")).to_contain_text("program.py")
    job.stop(signal.SIGTERM)


@pytest.mark.long
def test_a_slow_task_is_named(launch: Launch, open_page: OpenPage, program: str):
    job = started(launch, "--workers", "4", program, "slow")
    page = open_page("job")
    page.set_default_timeout(60_000)
    page.locator("h1.warn", has_text="worker/0 is slow").wait_for()
    expect(row(page, "worker/0")).to_have_class("warn")
    job.stop(signal.SIGTERM)


@pytest.mark.long
def test_a_launcher_that_was_killed(launch: Launch, open_page: OpenPage, program: str):
    job = started(launch, "--workers", "2", program)
    page = open_page("job")
    job.kill()
    expect(page.locator("h1.bad")).to_contain_text("died")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.reload()
    expect(page.locator("h1.bad")).to_contain_text("died")


@pytest.mark.long
def test_a_thousand_tasks(launch: Launch, open_page: OpenPage, program: str):
    launch("--workers", "2", program, "fail", code=1)
    (folder,) = launch.state.glob("2*")
    enlarge(folder, 1000)
    page = open_page("latest")
    expect(page.locator("#tasks tbody tr")).to_have_count(3)
    expect(page.locator("#tasks tbody")).to_contain_text("worker/517")
    expect(page.locator("#graphs canvas")).to_have_count(3)
    sizes = page.evaluate("performance.getEntries().map((entry) => entry.transferSize ?? 0)")
    assert sum(sizes) < 2e6
    page.get_by_role("button", name=re.compile("worker: 899")).click()
    expect(page.locator("#tasks tbody tr")).to_have_count(301)  # and how many more there are
    page.locator("#filter").fill("worker/777")
    expect(page.locator("#tasks tbody tr")).to_have_count(1)


def enlarge(folder: Path, count: int) -> None:
    """Give a run that has ended many tasks, and samples of them."""
    report = json.loads((folder / "report.json").read_text())
    task = report["tasks"][0]
    states = ["failed" if index == 517 else "running" if index < 900 else "stopped" for index in range(count)]
    report["tasks"] = [
        {**task, "task": f"worker/{index}", "state": state} for index, state in enumerate(states)
    ]
    (folder / "report.json").write_text(json.dumps(report))
    with (folder / "samples.jsonl").open("w") as file:
        for moment in range(40):
            fields = {"attempt": 1, "cpu": 1.0, "step": moment * 10, "memory": 10**9}
            tasks = {f"worker/{index}": fields for index in range(count)}
            file.write(json.dumps({"at": report["started_at"] + 2 * moment, "tasks": tasks}) + "\n")
