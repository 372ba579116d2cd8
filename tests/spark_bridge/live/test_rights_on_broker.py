"""A backfill on the secured broker: the rights of docs/operations.md are enough, and are missed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge import backfill
from headrace.spark_bridge.cli.backfill import code_of
from headrace.streams.devbroker import DevBroker
from headrace.streams.kafka.acls import AccessError, Right
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support import kafka, oracle
from tests.support.live import live
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.tenant import Tenant

LINE = "a b a c a b d e a f"


@pytest.fixture
def new_tenant(secured: DevBroker, tmp_path: Path) -> Callable[[], Tenant]:
    def make(**more: Any) -> Tenant:
        name = f"t{secrets.token_hex(4)}"
        more = {"statestore.cache.max.bytes": 0, **more}
        tenant = Tenant(secured, tmp_path / name, name, "exactly_once_v2", more)
        tenant.prepare(partitions=2)
        tenant.write(LINE)
        secured.grant(name, tenant.rights)
        return tenant

    return make


def rows(records: list[kafka.Record]) -> dict[bytes | None, list[bytes | None]]:
    """The values of each key in their order; wherever it was, the key is in one partition."""
    found: dict[bytes | None, list[bytes | None]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record.value)
    return found


def run_until(tenant: Tenant, expected: dict[bytes, int]) -> None:
    with live(tenant.topology, tenant.settings):
        wait_until(
            lambda: oracle.last_counts(tenant.read(tenant.output)) == expected,
            seconds=PATIENCE_S,
            what="all counts",
        )


def counts_of(words: str) -> dict[bytes, int]:
    return {word.encode(): words.split().count(word) for word in set(words.split())}


@pytest.mark.parametrize("handover", ["driver", "partitioned"])
def test_with_these_rights_a_backfill_gives_what_the_application_gives(
    spark: Any, new_tenant: Callable[[], Tenant], handover: Any
) -> None:
    batch, alive = new_tenant(), new_tenant()
    words = f"a b a {LINE}"
    run_until(alive, counts_of(words))
    backfill(batch.topology, batch.settings, spark=spark, handover=handover)

    def state(tenant: Tenant) -> dict[bytes | None, bytes | None]:
        found = rows(tenant.read(f"{tenant.application}-counts-changelog"))
        return {key: values[-1] for key, values in found.items()}

    assert state(batch) == state(alive)
    assert rows(batch.read(batch.output)) == rows(alive.read(alive.output))
    batch.write("a g")
    run_until(batch, counts_of(f"{words} a g"))


def denied_at_hand_over(
    spark: Any, tenant: Tenant, handover: Any, taken: Callable[[Right], bool]
) -> AccessError:
    """Take a right away when the first stage has run; returns what the backfill says."""
    lost = [right for right in tenant.rights if taken(right)]
    assert lost

    def take(_: Any) -> None:
        tenant.broker.revoke(tenant.name, lost)

    with pytest.raises(AccessError) as raised:
        backfill(
            tenant.topology, tenant.settings, spark=spark, handover=handover, id="b", on_stage=take
        )
    tenant.broker.grant(tenant.name, lost)
    assert code_of(raised.value) is ExitCode.ACCESS
    assert "\n" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("handover", ["driver", "partitioned"])
def test_a_right_to_write_that_is_missing_is_named_and_given_it_goes_on(
    spark: Any, new_tenant: Callable[[], Tenant], handover: Any
) -> None:
    """Executors lack it where they write."""
    tenant = new_tenant()
    error = denied_at_hand_over(spark, tenant, handover, lambda r: r.name == tenant.output)
    assert f"User:{tenant.name} lacks the right Write on the topic {tenant.output}" in str(error)
    backfill(
        tenant.topology,
        tenant.settings,
        spark=spark,
        handover=handover,
        id="b" if handover == "partitioned" else "c",
    )
    oracle.check_exact(tenant.read(tenant.output), counts_of(f"a b a {LINE}"))


def test_executors_that_are_not_let_in_end_a_backfill_with_the_code_of_that(
    spark: Any, new_tenant: Callable[..., Tenant]
) -> None:
    tenant = new_tenant(**{"restore.sasl.password": "c4n4ry"})
    with pytest.raises(AccessError) as raised:
        backfill(tenant.topology, tenant.settings, spark=spark)
    assert code_of(raised.value) is ExitCode.ACCESS
    said = str(raised.value)
    assert f"User:{tenant.name}" in said
    assert "correct sasl.mechanism, sasl.username and sasl.password" in said
    assert "c4n4ry" not in said
    assert "\n" not in said
