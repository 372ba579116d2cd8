from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from headrace.streams.devbroker import DevBroker
from tests.support.examples import QUICK
from tests.support.places import outside_live
from tests.support.topics import Topics
from tests.support.turns import in_turns
from tests.support.warm import await_coordinators

# A machine that is busy with other tests is slow by no fault of a test.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(QUICK, settings.get_profile("busy"), max_examples=20)
settings.load_profile("busy")

_REUSE_VARIABLE = "HEADRACE_TEST_BOOTSTRAP"
_REUSE_SECURED_VARIABLE = "HEADRACE_TEST_SECURED"
_WORKER_VARIABLE = "PYTEST_XDIST_WORKER"


def pytest_configure() -> None:
    """Take Ctrl-C as one in a terminal does: a shell has who runs in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark who asks for the broker, so that `-m 'not broker'` leaves no one out, and take turns."""
    for item in items:
        if {"broker", "secured", "eastern"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("broker")
    live = (item.path for item in items if item.get_closest_marker("broker") is not None)
    if astray := outside_live(live):
        raise pytest.UsageError(
            f"{', '.join(astray)}: tests there ask for the broker; move them into live/ beside it"
        )
    items[:] = in_turns(items)


def pytest_collection_finish() -> None:
    """Leave what was collected, which stays to the end, out of what is searched for garbage."""
    gc.collect()
    gc.freeze()
    # Most tests make graphs of objects and let go of them whole: to look less often is enough.
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def reused() -> dict[str, str]:
    """The brokers to reuse; out of the environment, where commands take it for their settings."""
    names = (_REUSE_VARIABLE, _REUSE_SECURED_VARIABLE)
    return {name: os.environ.pop(name) for name in names if name in os.environ}


@pytest.fixture(autouse=True)
def _modules_of_a_test_are_forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test wrote and imported, the next one may write and import under the same name."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before:
        written = str(tmp_path_factory.getbasetemp())
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(written):
                del sys.modules[name]


@pytest.fixture(autouse=True)
def _logging_of_a_test_is_undone() -> Iterator[None]:
    """Capturing events leaves structlog set up; programs that embed us find it untouched."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, reused: dict[str, str]) -> Iterator[str]:
    """Bootstrap servers of a real Kafka: that of HEADRACE_TEST_BOOTSTRAP, else one of our own.

    All processes of a run share one; whoever comes first starts it.
    """
    if _REUSE_VARIABLE in reused:
        yield reused[_REUSE_VARIABLE]
        return
    started = DevBroker(_directory(tmp_path_factory), port=0).start()
    await_coordinators(started)
    yield started
    # Clients of tests that nobody holds any more would go on looking for the broker.
    gc.collect()


@pytest.fixture(scope="session")
def secured(
    tmp_path_factory: pytest.TempPathFactory, reused: dict[str, str]
) -> Iterator[DevBroker]:
    """A real Kafka with TLS, users and rights: in HEADRACE_TEST_SECURED, else one of our own."""
    if _REUSE_SECURED_VARIABLE in reused:
        yield DevBroker(reused[_REUSE_SECURED_VARIABLE])
        return
    own = DevBroker(_directory(tmp_path_factory, "secured"), port=0, secure=True)
    own.start()
    yield own
    gc.collect()


def _directory(tmp_path_factory: pytest.TempPathFactory, name: str = "broker") -> Path:
    own = tmp_path_factory.getbasetemp()
    of_all = own if _WORKER_VARIABLE not in os.environ else own.parent
    return of_all / name


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the broker when the processes that shared it have ended."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if _WORKER_VARIABLE not in os.environ and factory is not None:
        for name in ("broker", "secured"):
            DevBroker(factory.getbasetemp() / name).stop()


@pytest.fixture
def topics(broker: str) -> Iterator[Topics]:
    """Makes topics, and names for topics, that no other test uses; deletes them at the end."""
    made = Topics(broker)
    yield made
    made.delete_all()
