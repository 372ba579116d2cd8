"""The live page in a real browser: what it shows, to whom, by which keys, and what it asks for."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamsBuilder, serdes
from headrace.streams.facts.board import Board
from headrace.streams.facts.snapshots import ApplicationSnapshot, NodeSnapshot, WorkerView
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import WebServer
from headrace.topology.show.picture import Arrow, Box, Picture, picture_of
from tests.support.processes import wait_until
from tests.support.snapshots import application_snapshot, node_snapshot

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TOKEN = "a-token-of-some-length"
NONE = "\u2013"
PAGE_BYTES = 150_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # Not for longer than these tests: it keeps an event loop in this thread.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def shop() -> Picture:
    builder = StreamsBuilder()
    orders = builder.stream("orders", value=serdes.json)
    grouped = orders.group_by(
        lambda _, order: order["product"], key=serdes.string, value=serdes.json, name="by-product"
    )
    grouped.count(store="store-0").to_stream().to("counts")
    return picture_of(builder.build())


class Scene:
    """An application that processes a thousand records a second in each task, and its page."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.picture = shop()
        self.facts = application_snapshot(workers=2, tasks=3)
        self.change: Callable[[ApplicationSnapshot], ApplicationSnapshot] = lambda facts: facts
        self._began_s = time.monotonic()
        self.server = WebServer(self.board, "0", log=EventLog(), **options)
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.said: list[str] = []
        self.asked: list[tuple[str, int]] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("response", self._answered)

    def _answered(self, answer: Any) -> None:
        self.asked.append((answer.url, int(answer.headers["content-length"])))

    def board(self) -> Board:
        now_s = time.monotonic()
        more = int((now_s - self._began_s) * 1000)
        workers = tuple(_later(worker, more, now_s) for worker in self.facts.workers)
        facts = self.change(replace(self.facts, workers=workers))
        return Board(
            facts=facts, turned_s=now_s, is_loaded=True, is_given_up=False, picture=self.picture
        )

    def open(self, path: str = "/") -> Any:
        self.page.goto(self.server.url + path)
        return self.page

    def total(self, name: str) -> str:
        return str(self.page.text_content(f"[data-total={name}]"))

    def close(self) -> None:
        self.page.close()
        self.server.close()


def _later(worker: WorkerView, more: int, now_s: float) -> WorkerView:
    facts = worker.facts
    assert facts is not None
    tasks = tuple(
        replace(
            task,
            processed=task.processed + more,
            committed=task.committed + more,
            inputs=tuple(
                replace(
                    one,
                    processed=one.processed + more,
                    committed=one.committed + more,
                    end=(one.end or 0) + more,
                )
                for one in task.inputs
            ),
        )
        for task in facts.tasks
    )
    committed = facts.committed + more * len(tasks)
    told = replace(
        facts, at_s=now_s, processed=facts.processed + more * len(tasks), committed=committed,
        tasks=tasks,
    )  # fmt: skip
    return replace(worker, facts=told)


@pytest.fixture
def scene(browser: Any) -> Iterator[Scene]:
    made = Scene(browser)
    yield made
    made.close()


def with_node(node: NodeSnapshot) -> ApplicationSnapshot:
    facts = application_snapshot()
    (worker,) = facts.workers
    assert worker.facts is not None
    return replace(facts, workers=(replace(worker, facts=replace(worker.facts, nodes=(node,))),))


def metrics(scene: Scene) -> dict[str, float]:
    found: dict[str, float] = {}
    with urllib.request.urlopen(scene.server.url + "/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if not line.startswith("#"):
                name = line.partition("{")[0].partition(" ")[0]
                found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


def test_figures_are_those_of_the_metrics(scene: Scene) -> None:
    page = scene.open()
    page.wait_for_selector("text=2 workers run")
    wait_until(lambda: scene.total("rate") != NONE, what="a rate")
    before = metrics(scene)["headrace_worker_committed_records_total"]
    page.wait_for_timeout(2_000)
    shown = int(scene.total("committed").replace(",", ""))
    after = metrics(scene)
    assert before <= shown <= after["headrace_worker_committed_records_total"]
    assert int(scene.total("lag")) == after["headrace_task_input_lag_records"]
    assert int(scene.total("keys")) == after["headrace_store_keys"]
    assert scene.total("running") == "6 of 6"
    # Six tasks of a thousand each second; how exactly depends on when it was asked.
    assert scene.total("rate").endswith("/s")
    assert 4_500 < float(scene.total("rate").removesuffix("/s")) < 7_500


def test_the_flow_has_rates_and_lags_on_its_arrows(scene: Scene) -> None:
    page = scene.open()
    label = page.locator("[data-arrow='topic orders > part 0']")
    label.wait_for()
    wait_until(lambda: not label.text_content().startswith(NONE), what="a rate")
    assert label.text_content().endswith("· lag 60")
    texts = page.locator("[data-box='part 0'] text").all_text_contents()
    assert any("6 of 6 tasks run" in text for text in texts)
    assert f"store-0: {NONE}" in " ".join(
        page.locator("[data-box='part 1'] text").all_text_contents()
    )


def test_every_view_is_reached_by_keys_alone(scene: Scene) -> None:
    page = scene.open()
    page.wait_for_selector("text=2 workers run")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    views = []
    for _ in range(7):
        page.keyboard.press("Tab")
        views.append(page.evaluate("document.activeElement.hash"))
    for view in views:
        page.focus(f"nav a[href='{view}']")
        page.keyboard.press("Enter")
        wait_until(partial(_is_seen, page, view), what=view)
    assert views == [
        "#flow", "#inputs", "#stores", "#steps", "#workers", "#tasks", "#events",
    ]  # fmt: skip
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.focus("#theme")
    page.keyboard.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def _is_seen(page: Any, view: str) -> bool:
    seen = page.evaluate(
        "view => { const top = document.querySelector(view).getBoundingClientRect().top;"
        " return top < innerHeight && top > -5; }",
        view,
    )
    return bool(seen)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(scene: Scene, scheme: str) -> None:
    scene.page.set_viewport_size({"width": 390, "height": 800})
    scene.page.emulate_media(color_scheme=scheme)
    page = scene.open()
    page.wait_for_selector("[data-row='0_0']")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_nothing_is_asked_of_other_hosts_and_little_of_this_one(scene: Scene) -> None:
    page = scene.open()
    page.wait_for_selector("[data-row='0_0']")
    page.wait_for_timeout(1_500)
    assert scene.said == []
    assert {url.removeprefix(scene.server.url)[0] for url, _ in scene.asked} == {"/"}
    files = {url: size for url, size in scene.asked if "/api/" not in url}
    assert len(files) > 5
    assert sum(files.values()) < PAGE_BYTES


def test_five_hundred_steps_are_still_read(scene: Scene) -> None:
    boxes, arrows, lanes = [], [], {}
    for part in range(50):
        lanes[part] = f"Sub-topology {part}"
        boxes += [Box(f"topic in-{part}", "topic", f"in-{part}"), Box(f"out {part}", "topic", "o")]
        steps = [Box(f"step-{part}-{number}", "step", "a step", part) for number in range(10)]
        arrows += [
            Arrow(f"topic in-{part // 7}", steps[0].id),
            *(Arrow(one.id, two.id) for one, two in pairwise(steps)),
            Arrow(steps[-1].id, f"out {part}"),
        ]
        boxes += steps
    scene.picture = Picture(tuple(boxes), tuple(arrows), lanes)
    page = scene.open()
    page.wait_for_selector("[data-box='part 49']")
    places = page.evaluate(
        "[...document.querySelectorAll('[data-box] rect')].map((box) => {"
        " const at = box.getBoundingClientRect();"
        " return [at.left, at.top, at.right, at.bottom]; })"
    )
    assert len(places) == 150
    for number, (left, top, right, bottom) in enumerate(places):
        for other in places[number + 1 :]:
            apart = other[0] >= right or other[2] <= left or other[1] >= bottom or other[3] <= top
            assert apart
    sizes = page.evaluate(
        "[...document.querySelectorAll('#picture text')].map("
        " (text) => text.getBoundingClientRect().height)"
    )
    assert min(sizes) > 10  # pixels: it is scrolled, not made smaller


def test_names_that_hold_html_are_shown_as_they_are(scene: Scene) -> None:
    odd = "<img src=x onerror=\"document.title='taken'\">"
    node = node_snapshot(name=odd, dropped={odd: 3})
    scene.facts = with_node(node)
    scene.picture = Picture(
        (Box("topic orders", "topic", odd), Box("read", "step", odd, 0)),
        (Arrow("topic orders", "read"),),
        {0: odd},
    )
    page = scene.open()
    page.wait_for_selector("[data-row]")
    assert odd in page.text_content("#steps")
    assert odd in page.text_content("#picture")
    assert page.locator("img").count() == 0
    assert page.title() == f"shop {NONE} Headrace"


def test_what_changes_is_told(scene: Scene) -> None:
    page = scene.open()
    page.wait_for_selector("text=2 workers run")

    def restarted(facts: ApplicationSnapshot) -> ApplicationSnapshot:
        first = replace(facts.workers[0], restarts=3, state="starting", pid=None)
        return replace(facts, workers=(first, *facts.workers[1:]))

    scene.change = restarted
    page.wait_for_selector("#events >> text=worker 0 was started again (3 times so far)")
    page.wait_for_selector("text=1 of 2 workers: starting, running")
    assert scene.total("running") == "3 of 3"


def test_an_application_that_has_gone_is_said_to_be(scene: Scene) -> None:
    page = scene.open()
    page.wait_for_selector("text=2 workers run")
    scene.server.close()
    page.wait_for_selector("text=it does not answer: the figures below are old")


def test_the_token_is_asked_for(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    scene = Scene(browser, token_file=file)
    try:
        page = scene.open()
        page.fill("#secret", "another")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=That token is not right.")
        page.fill("#secret", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("text=2 workers run")
        assert not page.is_visible("#token")
        assert TOKEN not in json.dumps(scene.asked)
    finally:
        scene.close()
