from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.state.directory import StateDirectory
from headrace.state.errors import StateLockedError
from tests.state.holders import holding


@pytest.fixture
def directory(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path, "app")


def test_an_identity_is_a_random_part_and_the_slot(directory: StateDirectory) -> None:
    assert re.fullmatch(r"[0-9a-f]{8}-0", directory.acquire_identity().instance_id)


@pytest.mark.slow
def test_processes_have_different_slots_and_find_them_again(
    directory: StateDirectory, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first = [stack.enter_context(holding("identity", tmp_path)).said for _ in range(3)]
    with ExitStack() as stack:
        again = [stack.enter_context(holding("identity", tmp_path)).said for _ in range(3)]
    assert [identity.rpartition("-")[2] for identity in first] == ["0", "1", "2"]
    assert again == first


def test_the_first_free_slot_is_taken(directory: StateDirectory, tmp_path: Path) -> None:
    """A killed worker leaves its slot to whoever comes next, with its transactional id."""
    with (
        holding("identity", tmp_path) as one,
        holding("identity", tmp_path),
        holding("identity", tmp_path),
    ):
        one.kill()
        assert directory.acquire_identity().instance_id == one.said


def test_a_released_slot_is_free(directory: StateDirectory) -> None:
    identity = directory.acquire_identity()
    identity.release()
    assert directory.acquire_identity().instance_id == identity.instance_id


def test_slots_of_two_hosts_never_have_the_same_identity(tmp_path: Path) -> None:
    one = StateDirectory(tmp_path / "one", "app").acquire_identity()
    two = StateDirectory(tmp_path / "two", "app").acquire_identity()
    assert one.instance_id != two.instance_id


def test_a_kill_within_the_taking_of_a_slot_keeps_its_random_part(
    directory: StateDirectory, tmp_path: Path
) -> None:
    """A shorter process id was written, and the rest of the longer one not yet cut off."""
    identity = directory.acquire_identity()
    identity.release()
    slot = tmp_path / "app" / "workers" / "slot-0"
    host = identity.instance_id.split("-")[0]
    slot.write_text(f"{host} 12\n678\n")
    assert directory.acquire_identity().instance_id == identity.instance_id


def test_a_given_identity_needs_no_slot(directory: StateDirectory, tmp_path: Path) -> None:
    assert directory.acquire_identity("pod-7").instance_id == "pod-7"
    assert not list((tmp_path / "app" / "workers").glob("slot-*"))


def test_a_given_identity_that_is_in_use_names_its_process(
    directory: StateDirectory, tmp_path: Path
) -> None:
    with holding("pod-7", tmp_path) as holder:
        with pytest.raises(StateLockedError, match=str(holder.pid)) as caught:
            directory.acquire_identity("pod-7")
        assert caught.value.holder_pid == holder.pid
        assert directory.acquire_identity("pod-8").instance_id == "pod-8"
    assert directory.acquire_identity("pod-7").instance_id == "pod-7"


@pytest.mark.parametrize(
    "damaged", [b"\x13\xb1be12ab 77\n", b"1234567 77\n", b"12345678\n", b"\xff"]
)
def test_a_damaged_slot_is_said_and_its_worker_has_a_new_identity(
    directory: StateDirectory, tmp_path: Path, damaged: bytes
) -> None:
    """Taken as it is, brokers would refuse it, and each start would inherit it."""
    directory.acquire_identity().release()
    (slot,) = tmp_path.rglob("slot-0")
    slot.write_bytes(damaged)
    assert len(directory.identities()) == (damaged == b"12345678\n")
    with capture_logs() as logs:
        found = directory.acquire_identity()
    assert re.fullmatch(r"[0-9a-f]{8}-0", found.instance_id)
    assert [(entry["event"], entry["path"]) for entry in logs] == [("identity_renewed", str(slot))]
    found.release()
    assert directory.acquire_identity().instance_id == found.instance_id
