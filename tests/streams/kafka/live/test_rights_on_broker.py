"""The rights that docs/operations.md lists are enough, and each of them is missed by its name.

Each case has a user, an application and topics of its own on the secured broker.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from headrace.streams.cli.main import main
from headrace.streams.devbroker import DevBroker
from headrace.streams.kafka.acls import AccessError, Right
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of, is_crash
from headrace.topology import StreamsBuilder, TimeWindows, serdes
from tests.support.live import Live, live
from tests.support.tenant import Tenant

Take = Callable[[Right], bool]
"""Whether this right is taken away."""
DENIED = "ends"
"""What a missing right does; else it is the event that the log has, and the application goes on."""


def on(operation: str, resource: str, begin: str = "") -> Take:
    """Rights of an operation on a kind of resource, whose names begin so."""
    return lambda right: (
        (right.operation, right.resource) == (operation, resource) and right.name.startswith(begin)
    )


@pytest.fixture
def new_tenant(secured: DevBroker, tmp_path: Path) -> Callable[[str], Tenant]:
    def make(guarantee: str = "exactly_once_v2", *, timestamp: int = 0) -> Tenant:
        tenant = Tenant(secured, tmp_path, f"t{secrets.token_hex(4)}", guarantee)
        tenant.prepare(timestamp=timestamp)
        return tenant

    return make


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_the_rights_of_the_page_are_enough(
    new_tenant: Callable[[str], Tenant], guarantee: str
) -> None:
    tenant = new_tenant(guarantee)
    tenant.broker.grant(tenant.name, tenant.rights)
    with capture_logs() as logs, live(tenant.topology, tenant.settings) as app:
        app.wait(lambda: app.processed >= 4, what="counted")
    ours = [entry["event"] for entry in logs if entry["log_level"] in ("warning", "error")]
    assert set(ours) <= {"client_warned"}  # such as a coordinator that is new


_TWO = ("exactly_once_v2", "at_least_once")
_CASES: list[tuple[str, Take, str, str, tuple[str, ...]]] = [
    ("Read", on("Read", "topic", "t"), "the topic {source}", DENIED, _TWO[:1]),
    ("Write", on("Write", "topic", "out"), "the topic {output}", DENIED, _TWO),
    ("Create", on("Create", "topic"), "the topic {application}-", DENIED, _TWO[:1]),
    ("Read", on("Read", "topic", "app"), "the topic {application}-", DENIED, _TWO[:1]),
    ("Write", on("Write", "topic", "app"), "the topic {application}-", DENIED, _TWO),
    ("Read", on("Read", "group"), "the group {application}", DENIED, _TWO[:1]),
    ("Write", on("Write", "transactional id"), "the transactional id {application}-", DENIED,
     _TWO[:1]),
    ("DescribeConfigs", on("DescribeConfigs", "topic", "t"), "{source}", "topic_configs_unknown",
     _TWO[:1]),
    ("DescribeConfigs", on("DescribeConfigs", "topic", "out"), "{output}",
     "topic_configs_unknown", _TWO[:1]),
    # AlterConfigs includes the right to read them.
    ("DescribeConfigs", lambda r: r.operation.endswith("Configs") and r.is_prefix,
     "{application}-counts-changelog", "topic_configs_unknown", _TWO[:1]),
    ("Delete", on("Delete", "topic"), "the topic {application}-by-word-repartition",
     "purge_failed", _TWO[:1]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("right", "taken", "resource", "outcome", "guarantee"),
    [
        pytest.param(*case[:4], guarantee, id=f"{case[0]} {case[2]} {guarantee}")
        for case in _CASES
        for guarantee in case[4]
    ],
)
def test_a_right_that_is_missing_is_named_with_its_user_and_resource(
    new_tenant: Callable[[str], Tenant],
    right: str,
    taken: Take,
    resource: str,
    outcome: str,
    guarantee: str,
) -> None:
    tenant = new_tenant(guarantee)
    missing = [one for one in tenant.rights if taken(one)]
    assert missing, "the page does not list it"
    tenant.broker.grant(tenant.name, [one for one in tenant.rights if one not in missing])
    on_what = resource.format(
        source=tenant.source, output=tenant.output, application=tenant.application
    )
    with capture_logs() as logs:
        app = Live(tenant.topology, tenant.settings)
        if outcome is DENIED:
            error = app.failure()
            assert isinstance(error, AccessError)
            assert exit_code_of(error) is ExitCode.ACCESS
            assert not is_crash(ExitCode.ACCESS)
            assert (error.principal, error.right) == (f"User:{tenant.name}", right)
            assert error.resource is not None
            assert error.resource.startswith(on_what)
            said = str(error)
        else:
            app.app.start()
            app.wait(lambda: any(e["event"] == outcome for e in logs), what=outcome)
            app.app.close()
            said = str(next(entry for entry in logs if entry["event"] == outcome))
    assert f"User:{tenant.name} lacks the right {right}" in said
    assert on_what in said


def test_keeping_old_windows_needs_the_right_to_alter_their_topic(
    new_tenant: Callable[..., Tenant],
) -> None:
    tenant = new_tenant("exactly_once_v2", timestamp=1_000_000_000_000)
    tenant.broker.grant(
        tenant.name, [one for one in tenant.rights if one.operation != "AlterConfigs"]
    )
    builder = StreamsBuilder()
    words = builder.stream(tenant.source, key=serdes.string, value=serdes.string)
    windows = TimeWindows(size=timedelta(seconds=1), grace=timedelta(0))
    words.group_by_key().windowed_by(windows).count(store="counts")
    event = "retention_not_suspended"
    with capture_logs() as logs, live(builder.build(), tenant.settings) as app:
        app.wait(lambda: any(entry["event"] == event for entry in logs), what=event)
    said = next(entry for entry in logs if entry["event"] == event)
    on_what = f"AlterConfigs on the topic {tenant.application}-counts-changelog"
    assert f"User:{tenant.name} lacks the right {on_what}" in said["reason"]


APP = """
from headrace.streams import KafkaStreams, serdes
from headrace.topology import StreamsBuilder

builder = StreamsBuilder()
words = builder.stream({source!r}, key=serdes.string, value=serdes.string)
words.group_by_key().count(store="counts").to_stream().to({output!r})
app = KafkaStreams(builder.build(), {{
    "application.id": {application!r}, "bootstrap.servers": "localhost:1", "state.dir": {home!r}}})
"""


@dataclass
class Desk:
    """Commands about a tenant's application, with its user's settings in a file."""

    tenant: Tenant

    def command(self, *arguments: str) -> Result:
        tenant = self.tenant
        facts = {name: getattr(tenant, name) for name in ("source", "output", "application")}
        file = tenant.home / "shop.py"
        file.write_text(APP.format(**facts, home=str(tenant.home / "state")))
        name, *more = arguments
        settings = str(tenant.broker.settings_file(tenant.name))
        line = [name, f"{file}:app", "--config", settings, "--set", "task.timeout.ms=20000"]
        return CliRunner().invoke(main, [*line, *more])


_TOOLS: list[tuple[tuple[str, ...], Take, str, str]] = [
    (("check", "--deployed"), on("Read", "topic", "t"), "Describe", "the topic {source}"),
    (("check", "--deployed"), on("Write", "topic", "out"), "Write", "the topic {output}"),
    (("check", "--deployed"), on("Read", "group"), "Read", "the group {application}.topology"),
    (("reset", "--yes"), on("Delete", "topic"), "Delete", "the topic {application}-counts"),
    (("reset", "--yes"), on("Read", "group"), "Read", "the group {application}"),
    (("reset", "--yes"), on("Read", "topic", "t"), "Read", "the topic {source}"),
    (("backfill", "--dry-run"), on("Read", "topic", "t"), "Read", "the topic {source}"),
    (("backfill", "--dry-run"), on("Write", "topic", "out"), "Write", "the topic {output}"),
    (("backfill", "--drop", "--id", "b"), on("Read", "group"), "Read",
     "the group {application}.backfill"),
    (("backfill", "--drop", "--id", "b"), on("Write", "transactional id"), "Write",
     "the transactional id {application}"),
]  # fmt: skip


def test_the_rights_of_the_page_are_enough_for_the_tools(
    new_tenant: Callable[[str], Tenant],
) -> None:
    tenant = new_tenant("at_least_once")
    tenant.broker.grant(tenant.name, tenant.rights)
    desk = Desk(tenant)
    checked = desk.command("check", "--deployed")
    assert checked.exit_code == 0, checked.output
    planned = desk.command("backfill", "--dry-run")
    assert planned.exit_code == 0, planned.output
    with live(tenant.topology, tenant.settings) as app:
        app.wait(lambda: app.processed >= 4, what="counted")
    reset = desk.command("reset", "--yes")
    assert (reset.exit_code, "Done." in reset.output) == (0, True), reset.output


@pytest.mark.parametrize(
    ("arguments", "taken", "right", "resource"),
    [pytest.param(*case, id=f"{case[0][0]} {case[2]} {case[3]}") for case in _TOOLS],
)
def test_a_tool_names_the_right_that_it_lacks(
    new_tenant: Callable[[str], Tenant],
    arguments: tuple[str, ...],
    taken: Take,
    right: str,
    resource: str,
) -> None:
    tenant = new_tenant("at_least_once")
    tenant.broker.grant(tenant.name, tenant.rights)
    if arguments[0] == "reset":
        with live(tenant.topology, tenant.settings) as app:
            app.wait(lambda: app.processed >= 4, what="counted")
    tenant.broker.revoke(tenant.name, [one for one in tenant.rights if taken(one)])
    told = Desk(tenant).command(*arguments)
    on_what = resource.format(
        source=tenant.source, output=tenant.output, application=tenant.application
    )
    lines = [line for line in told.output.splitlines() if line.startswith("Error: ")]
    assert told.exit_code == ExitCode.ACCESS, told.output
    assert len(lines) == 1
    assert f"User:{tenant.name} lacks the right {right} on {on_what}" in lines[0]


@pytest.mark.parametrize("missing", [None, 0, 1, 2, 3])
def test_resending_letters_needs_the_permissions_of_its_help(
    new_tenant: Callable[[str], Tenant], missing: int | None
) -> None:
    tenant = new_tenant("exactly_once_v2")
    letters, topic = tenant.source, tenant.output
    run = f"{letters}-{topic}-resend"
    needed = [
        Right("Read", "topic", letters),
        Right("Read", "group", run),
        Right("Write", "topic", topic),
        Right("Write", "transactional id", run),
    ]
    granted = [one for number, one in enumerate(needed) if number != missing]
    tenant.broker.grant(tenant.name, granted)
    settings = str(tenant.broker.settings_file(tenant.name))
    line = ["topics", "resend", letters, topic, "--config", settings]
    told = CliRunner().invoke(main, [*line, "--set", "task.timeout.ms=20000"])
    if missing is None:
        assert told.exit_code == 0, told.output
        assert "Not sent: 3 of no topic" in told.output
    else:
        assert told.exit_code == ExitCode.ACCESS, told.output
        assert needed[missing].name in told.output
