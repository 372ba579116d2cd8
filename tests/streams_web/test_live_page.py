"""The live page in a real browser: what it shows, to whom, by which keys, and what it asks for."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace import KafkaStreams, StreamsBuilder, TimeWindows, TopologyTestDriver, serdes
from headrace.streams.metrics.snapshots import (
    ApplicationSnapshot,
    HealthSnapshot,
    HotKey,
    NodeSnapshot,
    WorkerView,
)
from headrace.streams.queries import feeds, replicas
from headrace.streams.queries.queries import Queries
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer
from headrace.topology.describe.picture import Arrow, Box, Picture, picture_of
from tests.support.feeds import MemoryFeeds
from tests.support.hosts import Group
from tests.support.processes import wait_until
from tests.support.snapshots import application_snapshot, node_snapshot, task_snapshot

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
        self.snapshot = application_snapshot(workers=2, tasks=3)
        self.change: Callable[[ApplicationSnapshot], ApplicationSnapshot] = lambda snapshot: (
            snapshot
        )
        self._began_s = time.monotonic()
        self.server = HttpServer(self.board, "0", log=EventLog(), **options)
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.said: list[str] = []
        self.asked: list[tuple[str, int]] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("response", self._answered)

    def _answered(self, answer: Any) -> None:
        self.asked.append((answer.url, int(answer.headers.get("content-length", 0))))

    def board(self) -> HealthSnapshot:
        now_s = time.monotonic()
        more = int((now_s - self._began_s) * 1000)
        workers = tuple(_later(worker, more, now_s) for worker in self.snapshot.workers)
        snapshot = self.change(replace(self.snapshot, workers=workers))
        return HealthSnapshot(
            snapshot=snapshot,
            turned_s=now_s,
            is_loaded=True,
            has_failed=False,
            picture=self.picture,
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
    snapshot = worker.snapshot
    assert snapshot is not None
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
        for task in snapshot.tasks
    )
    committed = snapshot.committed + more * len(tasks)
    told = replace(
        snapshot, at_s=now_s, processed=snapshot.processed + more * len(tasks), committed=committed,
        tasks=tasks, sent={"counts": more, "shop-store-0-changelog": more},
    )  # fmt: skip
    return replace(worker, snapshot=told)


@pytest.fixture
def scene(browser: Any) -> Iterator[Scene]:
    made = Scene(browser)
    yield made
    made.close()


def with_node(node: NodeSnapshot) -> ApplicationSnapshot:
    snapshot = application_snapshot()
    (worker,) = snapshot.workers
    assert worker.snapshot is not None
    return replace(
        snapshot, workers=(replace(worker, snapshot=replace(worker.snapshot, nodes=(node,))),)
    )


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
    written = page.locator("[data-arrow='part 1 > topic counts']")
    wait_until(lambda: near(written.text_content(), 2_000), what="the rate of what nobody reads")
    assert f"store-0: {NONE}" in " ".join(
        page.locator("[data-box='part 1'] text").all_text_contents()
    )


def test_labels_of_arrows_that_meet_do_not_overlap(scene: Scene) -> None:
    builder = StreamsBuilder()
    customers = builder.table("customers", value=serdes.json)
    builder.stream("orders", value=serdes.json).join(customers, lambda order, _: order).to("counts")
    scene.picture = picture_of(builder.build())
    scene.change = reading_customers
    page = scene.open()
    labels = page.locator("svg text[data-arrow$='> part 0']")
    wait_until(lambda: labels.count() == 2, what="two labels")
    first, second = (labels.nth(number).bounding_box() for number in range(2))
    assert abs(first["x"] - second["x"]) < first["width"]  # else there is nothing to avoid
    assert abs(first["y"] - second["y"]) >= first["height"] - 2


def reading_customers(snapshot: ApplicationSnapshot) -> ApplicationSnapshot:
    """Have each task read a second topic."""
    workers = []
    for worker in snapshot.workers:
        assert worker.snapshot is not None
        tasks = tuple(
            replace(task, inputs=(*task.inputs, replace(task.inputs[0], topic="customers")))
            for task in worker.snapshot.tasks
        )
        workers.append(replace(worker, snapshot=replace(worker.snapshot, tasks=tasks)))
    return replace(snapshot, workers=tuple(workers))


def near(text: str, rate: int) -> bool:
    """Whether a rate is shown that is about this one; how exactly depends on when it was asked."""
    return text.endswith("/s") and 0.7 * rate < float(text.removesuffix("/s")) < 1.3 * rate


def test_outputs_that_nobody_here_reads_have_rates(scene: Scene) -> None:
    page = scene.open()
    cells = page.locator("#outputs tbody tr td")
    cells.first.wait_for()
    wait_until(lambda: near(cells.nth(1).text_content(), 2_000), what="a rate")
    topic, _, sent = cells.all_text_contents()  # changelogs are left out
    assert topic == "counts"
    assert int(sent.replace(",", "")) > 1_000


def test_every_view_is_reached_by_keys_alone(scene: Scene) -> None:
    page = scene.open()
    page.wait_for_selector("text=2 workers run")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    views = []
    for _ in range(9):
        page.keyboard.press("Tab")
        views.append(page.evaluate("document.activeElement.hash"))
    for view in views:
        page.focus(f"nav a[href='{view}']")
        page.keyboard.press("Enter")
        wait_until(partial(_is_seen, page, view), what=view)
    names = "flow inputs outputs stores ask steps workers tasks events"
    assert views == [f"#{name}" for name in names.split()]
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


def many_steps() -> Picture:
    """Fifty sub-topologies of ten steps."""
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
    return Picture(tuple(boxes), tuple(arrows), lanes)


def test_five_hundred_steps_are_still_read(scene: Scene) -> None:
    scene.picture = many_steps()
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
    scene.snapshot = with_node(node)
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

    def restarted(snapshot: ApplicationSnapshot) -> ApplicationSnapshot:
        first = replace(snapshot.workers[0], restarts=3, state="starting", pid=None)
        return replace(snapshot, workers=(first, *snapshot.workers[1:]))

    scene.change = restarted
    page.wait_for_selector("#events >> text=worker 0 was restarted (3 times so far)")
    page.wait_for_selector("text=1 of 2 workers: starting, running")
    assert scene.total("running") == "3 of 3"


def test_an_application_that_has_gone_is_said_to_be(scene: Scene) -> None:
    page = scene.open()
    page.wait_for_selector("text=2 workers run")
    scene.server.close()
    page.wait_for_selector("text=the server does not answer, so the data below is outdated")


def test_the_token_is_asked_for(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    scene = Scene(browser, token_file=file)
    try:
        page = scene.open()
        page.fill("#secret", "another")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=The token is wrong.")
        page.fill("#secret", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("text=2 workers run")
        assert not page.is_visible("#token")
        assert TOKEN not in json.dumps(scene.asked)
    finally:
        scene.close()


class Stores:
    """Rows of stores as an application has them, and changes of one of them."""

    def __init__(self, path: Path) -> None:
        builder = StreamsBuilder()
        words = builder.stream("words", key=serdes.string, value=serdes.string)
        grouped = words.group_by_key()
        grouped.count(store="counts").to_stream().to("out")
        windows = TimeWindows(size=timedelta(seconds=10), grace=timedelta(days=1))
        grouped.windowed_by(windows).count(store="windows").to_stream().to("windows-out")
        builder.table("named", key=serdes.string, value=serdes.string, store="named")
        topology = builder.build()
        settings = {
            "application.id": "shop", "bootstrap.servers": "nowhere:1", "state.dir": str(path),
        }  # fmt: skip
        self.driver = TopologyTestDriver(
            topology, settings, state_dir=path, commit="manual", now=time.time_ns() // 1_000_000
        )
        app = KafkaStreams(topology, settings)
        self.hot: list[HotKey] = []
        self.group = Group(app.plans, 1, {"here:1": {0}})
        self.queries = Queries(
            replace(app.config, application_server="here:1"),
            app.plans,
            snapshot=self._snapshot,
            cluster=lambda: self.group,
        )
        self.memory = MemoryFeeds(self.driver.cluster)

    def _snapshot(self) -> ApplicationSnapshot:
        """Of a worker that has all tasks, as it told long ago."""
        tasks = []
        for sub, names in ((0, ("counts", "windows")), (1, ("named",))):
            task = task_snapshot(sub=sub)
            kept = [replace(task.stores[0], name=name) for name in names]
            kept[0] = replace(kept[0], hot_keys=() if sub else tuple(self.hot))
            tasks.append(replace(task, state="waiting", stores=tuple(kept)))
        (view,) = application_snapshot().workers
        assert view.snapshot is not None
        told = replace(view, snapshot=replace(view.snapshot, tasks=tuple(tasks)))
        return replace(application_snapshot(), workers=(told,))

    def send(self, topic: str, *records: tuple[str, str | None], timestamp: int = 7) -> None:
        with self.memory.lock:
            for key, value in records:
                self.driver.input(topic).send(key, value, timestamp=timestamp)
            self.driver.commit()

    def close(self) -> None:
        self.queries.close()
        self.driver.close()


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    made = Stores(tmp_path)
    monkeypatch.setattr(feeds, "LiveCluster", lambda _: made.memory)
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)
    yield made
    made.close()


@pytest.fixture
def asking(browser: Any, stores: Stores) -> Iterator[Scene]:
    made = Scene(browser, queries=lambda: stores.queries)
    yield made
    made.close()


ODD = "<img src=x onerror=\"document.title='taken'\">"


def test_a_store_is_asked_by_keys_alone(asking: Scene, stores: Stores) -> None:
    stores.send("words", ("the", ""), ("the", ""), (ODD, ""))
    stores.send("named", ("odd", ODD))
    page = asking.open()
    page.wait_for_selector("#question")
    page.focus("#store")
    page.keyboard.type("counts")
    page.focus("#key")
    page.keyboard.type("the")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=a row, in")
    shown = json.loads(page.text_content("#answer"))
    assert shown["value"] == 2
    # Numbers of more digits than a browser reckons with.
    with urllib.request.urlopen(f"{asking.server.url}/api/stores/counts/the", timeout=30) as told:
        commit_id = json.load(told)["positions"][0]["commit_id"]
    assert commit_id > 2**53
    assert shown["positions"][0]["commit_id"] == commit_id
    page.fill("#key", ODD)
    page.keyboard.press("Enter")
    wait_until(lambda: ODD in json.loads(page.text_content("#answer"))["key"], what="the odd key")
    page.select_option("#store", "named")
    page.fill("#key", "odd")
    page.keyboard.press("Enter")
    wait_until(lambda: json.loads(page.text_content("#answer"))["value"] == ODD, what="its value")
    assert page.locator("img").count() == 0
    assert page.title() == f"shop {NONE} Headrace"
    assert asking.said == []


def test_ranges_and_prefixes_come_in_pages(asking: Scene, stores: Stores) -> None:
    stores.send("words", *((f"k{number:03d}", "") for number in range(250)))
    page = asking.open()
    page.wait_for_selector("#question")
    page.select_option("#store", "counts")
    page.select_option("#what", "range")
    page.fill("#from", "k010")
    page.press("#from", "Enter")
    page.wait_for_selector("text=100 rows, in")
    rows = json.loads(page.text_content("#answer"))["rows"]
    assert [row["key"] for row in rows][:2] == ["k010", "k011"]
    page.click("#more")
    wait_until(lambda: '"k110"' in page.text_content("#answer"), what="the next page")
    page.select_option("#what", "prefix")
    page.fill("#key", "k24")
    page.press("#key", "Enter")
    page.wait_for_selector("text=10 rows, in")
    assert not page.is_visible("#more")


def test_windows_are_asked_by_their_times(asking: Scene, stores: Stores) -> None:
    for second in (1, 2, 11, 31):
        stores.send("words", ("a", ""), timestamp=1000 * second)
    page = asking.open()
    page.wait_for_selector("#question")
    page.select_option("#store", "windows")
    page.fill("#key", "a")
    page.fill("#to", "1970-01-01T00:00:10Z")
    page.press("#to", "Enter")
    page.wait_for_selector("text=2 rows, in")
    assert page.locator("#what option[value=prefix]").is_disabled()


def test_what_is_asked_wrongly_is_said(asking: Scene, stores: Stores) -> None:
    stores.send("words", ("the", ""))
    page = asking.open()
    page.wait_for_selector("#question")
    page.select_option("#store", "counts")
    page.fill("#key", "none")
    page.press("#key", "Enter")
    page.wait_for_selector("#message >> text=store 'counts' has no row of this key")
    page.select_option("#store", "windows")
    page.fill("#from", "then")
    page.press("#from", "Enter")
    page.wait_for_selector(
        "#message >> text=from must be milliseconds since 1970 or a time such as"
    )
    assert not page.is_visible("#answer-box")


def test_changes_are_followed_and_let_go(asking: Scene, stores: Stores) -> None:
    stores.send("words", ("the", ""))
    page = asking.open()
    page.wait_for_selector("#question")
    page.select_option("#store", "counts")
    page.focus("#follow")
    page.keyboard.press("Enter")

    def is_told() -> bool:
        # A reader is there before it has said where it begins, and tells nothing of before.
        stores.send("words", ("before", ""))
        return bool(page.locator("#changes tbody tr").count())

    wait_until(is_told, what="a change")
    stores.send("words", ("the", ""), (ODD, ""))
    wait_until(lambda: ODD in page.text_content("#changes tbody"), what="the last change")
    assert "the2" in page.text_content("#changes tbody")
    assert page.locator("img").count() == 0
    page.keyboard.press("Enter")
    wait_until(lambda: not stores.memory.open, what="no reader")
    assert page.text_content("#follow") == "Follow changes"
    assert asking.said == []
    scene_width = page.evaluate("document.documentElement.scrollWidth")
    assert scene_width == 1200


def test_keys_that_change_most_are_shown_where_stores_are_served(
    asking: Scene, stores: Stores
) -> None:
    stores.hot = [
        HotKey(key=ODD.encode(), share=0.97, max_error=0.02),
        HotKey(key=b"the", share=0.3, max_error=0.1),
    ]  # fmt: skip
    asking.page.set_viewport_size({"width": 390, "height": 800})
    page = asking.open()
    rows = page.locator("#hot [data-hot=counts] tbody tr")
    rows.nth(1).wait_for()
    found = [row.locator("td").all_text_contents() for row in rows.all()]
    assert found == [[ODD, "0", "97 %", "2 %"], ["the", "0", "30 %", "10 %"]]
    assert rows.first.locator("td").nth(2).get_attribute("class") == "number warn"
    assert page.locator("img").count() == 0
    assert page.title() == f"shop {NONE} Headrace"
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.querySelector('#stores').lastElementChild.id") == "hot"
    page.focus("#hot [role=region]")
    stores.hot = [HotKey(key=b"rose", share=0.2, max_error=0.0)]
    page.wait_for_selector("#hot >> text=rose")
    assert (
        page.evaluate("document.activeElement.ariaLabel")
        == "Most frequently changed keys of counts"
    )
    stores.hot = []
    page.wait_for_selector("#hot", state="hidden")
    assert asking.said == []


def test_a_hundred_keys_of_each_store_are_shown_beside_five_hundred_steps(
    asking: Scene, stores: Stores
) -> None:
    asking.picture = many_steps()
    stores.hot = [HotKey(key=b"key %03d" % n, share=1 - n / 200, max_error=0.0) for n in range(100)]
    page = asking.open()
    page.wait_for_selector("[data-box='part 49']")
    page.wait_for_selector("#hot [data-hot=counts] tbody tr:nth-child(100)")
    assert page.evaluate("document.documentElement.scrollWidth") == 1200
    begun_s = time.monotonic()
    page.locator("#hot tbody tr").last.scroll_into_view_if_needed()
    assert time.monotonic() - begun_s < 30
    assert asking.said == []


def test_keys_are_not_told_where_stores_are_not_served(scene: Scene) -> None:
    def with_keys(snapshot: ApplicationSnapshot) -> ApplicationSnapshot:
        (worker, *others) = snapshot.workers
        assert worker.snapshot is not None
        task = worker.snapshot.tasks[0]
        hot = HotKey(key=b"secret", share=1.0, max_error=0.0)
        task = replace(task, stores=(replace(task.stores[0], hot_keys=(hot,)),))
        told = replace(worker.snapshot, tasks=(task, *worker.snapshot.tasks[1:]))
        return replace(snapshot, workers=(replace(worker, snapshot=told), *others))

    scene.change = with_keys
    page = scene.open()
    page.wait_for_selector("text=2 workers run")
    assert not page.is_visible("#hot")
    for path in ("snapshot", "tasks", "workers", "application", "lag"):
        with urllib.request.urlopen(f"{scene.server.url}/api/{path}", timeout=30) as answer:
            text = answer.read().decode()
        assert "secret" not in text
        assert "c2VjcmV0" not in text  # the same in Base64
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{scene.server.url}/api/hot-keys", timeout=30)
    assert refused.value.code == 404
    refused.value.close()


def test_workers_of_other_hosts_are_shown_with_their_tasks(asking: Scene, stores: Stores) -> None:
    stores.group.partitions = 6
    stores.group.given = {"here:1": {0, 1}, "there:2": {2, 3, 5}, "away:3": {4}}
    page = asking.open()
    rows = page.locator("#others tbody tr")
    rows.nth(1).wait_for()
    found = {tuple(row.locator("td").all_text_contents()) for row in rows.all()}
    assert found == {
        ("there:2", "member-1", "6", "0_2 0_3 0_5 1_2 1_3 1_5"),
        ("away:3", "member-2", "2", "0_4 1_4"),
    }
    assert page.evaluate("document.querySelector('#workers').lastElementChild.id") == "others"
    page.wait_for_timeout(4_000)
    asked = [url for url, _ in asking.asked if url.endswith("/api/group")]
    assert 2 <= len(asked) <= 4
    assert stores.group.asked <= len(asked) + 1
    stores.group.given = {"here:1": {0, 1, 2, 3, 4, 5}}
    page.wait_for_selector("#others", state="hidden")
    assert asking.said == []


def test_where_stores_are_not_served_the_page_says_so(scene: Scene) -> None:
    page = scene.open()
    page.wait_for_selector("text=Stores are not served here. Start headrace run with --queries")
    assert not page.is_visible("#question")
    assert scene.said == []
