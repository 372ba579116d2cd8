"""Take the pictures of docs/dashboard.md: ``python -m tests.streams_web.take_pictures``.

They show a real application on a broker of its own.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka

from headrace.streams.devbroker import DevBroker
from tests.streams_web.test_live_page import CHROMIUM
from tests.support.processes import ROOT, wait_until
from tests.support.supervised import COMMAND
from tests.support.topics import Topics

IMAGES = ROOT / "docs/images"
LOOKS = (
    ("dashboard.png", 1200, 900, "light"),
    ("dashboard-phone.png", 390, 760, "dark"),
)
URL = "http://127.0.0.1:9471/"
RECORDS_PER_SECOND = 1_500
REGIONS = ("Africa", "Asia", "Europe", "North America", "Oceania", "South America")
PRODUCTS = ("bread", "coffee", "milk", "soap", "sugar", "tea")
APP = """
from headrace import KafkaStreams, Materialized, StreamsBuilder, serdes

builder = StreamsBuilder()
customers = builder.table("customers", key=serdes.string, value=serdes.json, store="customers")
orders = builder.stream("orders", key=serdes.string, value=serdes.json)
located = orders.join(customers, lambda order, customer: {**order, "region": customer["region"]})
by_region = located.group_by(lambda _, order: order["region"], key=serdes.string, name="by-region")
by_region.count(store="orders-by-region").to_stream().to("region-counts")
app = KafkaStreams(
    builder.build(),
    {
        "application.id": "shop",
        "bootstrap.servers": %r,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": "state",
        "commit.interval.ms": 1000,
    },
)
"""


def write(bootstrap: str, stopped: threading.Event) -> None:
    """Write customers, and then orders at a steady rate until it is stopped."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    chosen = random.Random(1)
    names = [f"c-{number:04}" for number in range(2_000)]
    for name in names:
        producer.produce("customers", json.dumps({"region": chosen.choice(REGIONS)}), name)
    producer.flush()
    began = time.monotonic()
    for number in itertools.count():
        order = {"product": chosen.choice(PRODUCTS), "cents": chosen.randrange(100, 5_000)}
        producer.produce("orders", json.dumps(order), chosen.choice(names))
        producer.poll(0)
        if stopped.wait(max(0.0, began + number / RECORDS_PER_SECOND - time.monotonic())):
            break
    producer.flush()


@contextmanager
def application(home: Path) -> Iterator[None]:
    """Run the application with its broker and its input."""
    broker = DevBroker(home / "broker", port=0)
    bootstrap = broker.start()
    topics = Topics(bootstrap)
    for name in ("customers", "orders", "region-counts"):
        topics.create_named(name, partitions=4)
    (home / "shop.py").write_text(APP % bootstrap)
    command = [*COMMAND, "shop.py:app", "--workers=2", "--queries", f"--http={URL.split('/')[2]}"]
    stopped = threading.Event()
    writer = threading.Thread(target=write, args=(bootstrap, stopped))
    writer.start()
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        stopped.set()
        writer.join()
        process.terminate()
        process.wait()
        broker.stop()


def open_page(browser: Any, width: int, height: int, scheme: str) -> Any:
    """Open the dashboard, and wait until tasks run and rates are known."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(URL)
    page.wait_for_selector("text=8 of 8", timeout=60_000)
    page.wait_for_timeout(10_000)
    return page


def take(directory: Path) -> None:
    """Take them all."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, width, height, scheme in LOOKS:
            page = open_page(browser, width, height, scheme)
            page.screenshot(path=directory / name)
            page.close()
        take_query(browser, directory)
        browser.close()


def take_query(browser: Any, directory: Path) -> None:
    """Take that of a store that is queried and followed."""
    page = open_page(browser, 1000, 900, "light")
    page.wait_for_selector("#question")
    page.select_option("#store", "orders-by-region")
    page.fill("#key", "Europe")
    page.press("#key", "Enter")
    page.wait_for_selector("text=a row, in")
    page.fill("#key", "")
    page.click("#follow")
    page.wait_for_selector("#changes tbody tr:nth-child(8)")
    page.locator("#ask").screenshot(path=directory / "dashboard-query.png")


def answers() -> bool:
    """Whether the server of the application answers."""
    check = f"from urllib.request import urlopen; urlopen({URL + 'health/ready'!r})"
    return subprocess.run([sys.executable, "-c", check], stderr=-3, check=False).returncode == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, application(Path(name)):
        wait_until(answers, what=(Path(name) / "log").read_text())
        take(IMAGES)
