"""The generated pages of docs/reference are current and complete."""

from __future__ import annotations

import pytest

from tests.support import error_page, reference_pages
from tests.support.generated_pages import PAGES
from tests.support.golden_names import log_events
from tests.support.processes import ROOT

FILES = {
    "log-events": "log-events.md",
    "exit-code-page": "exit-codes.md",
    "errors": "errors.md",
    "http-api": "http-api.md",
}


@pytest.mark.parametrize("name", FILES)
def test_the_page_is_current(name: str) -> None:
    page = f"docs/reference/{FILES[name]}"
    assert (ROOT / page).read_text() == PAGES[name](), (
        f"run python -m tests.support.generated_pages {name} > {page}"
    )


def test_each_log_event_is_described() -> None:
    described, found = reference_pages.described_events(), sorted(log_events())
    assert described == found, (
        f"tests/support/log_events.toml lacks {sorted({*found} - {*described})}, and has "
        f"{sorted({*described} - {*found})} in excess"
    )


def test_fields_that_a_call_passes_as_a_mapping_are_named() -> None:
    assert set(reference_pages.MORE_FIELDS) == reference_pages.events_with_mappings()


def test_each_event_has_a_level() -> None:
    levels = reference_pages.levels_of_events()
    known = set(reference_pages.LEVEL_ORDER)
    assert {event for event, found in levels.items() if not found <= known} == set(
        reference_pages.LEVELS
    )


def test_each_public_error_is_described() -> None:
    assert error_page.errors_without_section() == []
