"""Starts that would begin empty although the group has read its input: refused, with a way out."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.streams.cli.main import main
from headrace.streams.errors import TopologyChangedError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.plan.deployed import topology_group
from headrace.streams.plan.identity import ChangelogLostError
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of
from headrace.topology import Materialized
from tests.streams.worker.live.test_topic_watch_on_broker import delete
from tests.support import kafka
from tests.support.counting import Counting
from tests.support.live import Live, live
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics


def restore_from_local(counting: Counting, directory: Path, *arguments: str) -> Result:
    return command(counting, directory, "changelog", "restore-from-local", *arguments)


def command(counting: Counting, directory: Path, *arguments: str) -> Result:
    """Call headrace; the application is named last."""
    file = directory / f"app_{uuid.uuid4().hex}.py"
    file.write_text(
        "from headrace.streams import KafkaStreams, serdes\n"
        "from headrace.topology import StreamsBuilder\n"
        "builder = StreamsBuilder()\n"
        f"stream = builder.stream({counting.input!r}, key=serdes.string, value=serdes.string)\n"
        "counts = stream.group_by_key().count(store='counts')\n"
        f"counts.to_stream().to({counting.output!r})\n"
        f"app = KafkaStreams(builder.build(), {counting.settings!r})\n"
    )
    result = CliRunner().invoke(main, [*arguments, f"{file}:app"])
    print(result.output)
    return result


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_changelog_that_is_gone_is_written_anew_from_the_local_rows(
    guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    """The start made it anew and dropped the last copy: the counts of 600 records were 300."""
    counting = Counting(topics, tmp_path, partitions=2, processing_guarantee=guarantee)
    counting.write(600)
    counting.finish()
    delete(topics, counting.changelog)
    failure = Live(counting.topology(), counting.settings).failure()
    assert isinstance(failure, ChangelogLostError)
    assert exit_code_of(failure) is ExitCode.OFFSETS
    assert counting.changelog in str(failure)
    assert topics.partitions(counting.changelog) == 0, "nothing was created"
    checked = command(counting, tmp_path, "check", "--deployed")
    assert checked.exit_code == 1
    assert f"Refused: changelogs that are gone: {counting.changelog}" in checked.output

    shown = restore_from_local(counting, tmp_path, "--dry-run")
    assert (shown.exit_code, topics.partitions(counting.changelog)) == (0, 0)
    assert "  0_0: counts\n  0_1: counts" in shown.output
    assert restore_from_local(counting, tmp_path, "--yes").exit_code == 0
    counting.write(100)
    counting.finish()
    counting.check_exact()
    counting.lose_state()
    counting.write(100)
    counting.finish()
    counting.check_exact()


def test_a_changelog_that_was_made_anew_where_no_host_has_rows_is_refused(
    topics: Topics, tmp_path: Path
) -> None:
    """The counts began at 1 again, without a word; a reset begins anew by intent."""
    counting = Counting(topics, tmp_path, processing_guarantee="exactly_once_v2")
    counting.write(60)
    counting.finish()
    counting.lose_state()
    partitions = topics.partitions(counting.changelog)
    delete(topics, counting.changelog)
    topics.create_named(
        counting.changelog, partitions=partitions, config={"cleanup.policy": "compact"}
    )
    failure = Live(counting.topology(), counting.settings).failure()
    assert isinstance(failure, ChangelogLostError)
    assert exit_code_of(failure) is ExitCode.OFFSETS
    assert f"{counting.changelog} (store counts)" in str(failure)
    checked = command(counting, tmp_path, "check", "--deployed")
    assert checked.exit_code == 1
    assert f"Refused: changelogs that are gone: {counting.changelog}" in checked.output

    shown = restore_from_local(counting, tmp_path, "--dry-run")
    assert "  0_0: no rows here" in shown.output
    assert command(counting, tmp_path, "reset", "--yes").exit_code == 0
    with live(counting.topology(), counting.settings) as app:
        app.wait_running()


def test_a_running_application_is_left_alone(topics: Topics, tmp_path: Path) -> None:
    counting = Counting(topics, tmp_path)
    counting.write(5)
    with counting.run() as app:
        counting.wait(app)
        refused = restore_from_local(counting, tmp_path, "--yes")
    assert refused.exit_code != 0
    assert "locked" in refused.output


def test_a_store_that_is_new_begins_empty_as_before(topics: Topics, tmp_path: Path) -> None:
    counting = Counting(topics, tmp_path)
    counting.write(5)
    counting.finish()
    counting.store = Materialized("others")
    with live(counting.topology(), counting.settings | accepted(counting)) as app:
        app.wait_running()
    assert topics.partitions(f"{counting.group}-others-changelog") == 1


def accepted(counting: Counting) -> dict[str, Any]:
    """What accepts the change that a start is refused for."""
    failure = Live(counting.topology(), counting.settings).failure()
    assert isinstance(failure, TopologyChangedError)
    return {"topology.change.accept": failure.code}


def test_a_misspelt_store_over_a_deployment_that_nobody_described_is_refused(
    topics: Topics, tmp_path: Path
) -> None:
    """It began to count at 1, and the only trace was that a topic was created."""
    counting = Counting(topics, tmp_path)
    counting.write(20)
    counting.finish()
    admin = GroupAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=PATIENCE_S)
    wait_until(lambda: not admin.members(counting.group), what="the group is empty")
    admin.delete_groups([topology_group(counting.group)])
    # Another application, whose id begins alike.
    topics.create_named(f"{counting.group}-eu-counts-changelog")
    kafka.set_committed(topics.bootstrap, f"{counting.group}-eu", counting.input, {0: 0})

    counting.store = Materialized("count")
    failure = Live(counting.topology(), counting.settings).failure()
    assert isinstance(failure, TopologyChangedError)
    assert exit_code_of(failure) is ExitCode.CONFIGURATION
    told = failure.changes[1:]
    assert told == (
        "claimed: none",
        f"new: {counting.group}-count-changelog",
        f"unclaimed: {counting.changelog}",
    )
    assert topics.partitions(f"{counting.group}-count-changelog") == 0
    with_code = counting.settings | {"topology.change.accept": failure.code}
    with live(counting.topology(), with_code) as app:
        app.wait_running()

    admin.delete_groups([topology_group(counting.group)])
    counting.store = Materialized("counts")
    counting.write(20)
    counting.finish()


def test_offsets_that_somebody_set_before_the_first_start_refuse_nothing(
    topics: Topics, tmp_path: Path
) -> None:
    counting = Counting(topics, tmp_path)
    kafka.set_committed(topics.bootstrap, counting.group, counting.input, {0: 0})
    topics.create_named(f"{counting.group}-left-changelog")
    counting.write(20)
    counting.finish()
    counting.check_exact()
