"""The files of a secured dev broker."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headrace.streams.devbroker import CertificatesUnavailableError
from headrace.streams.devbroker.security import Security


def test_a_start_that_cannot_make_certificates_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(CertificatesUnavailableError, match="pip install cryptography"):
            Security(tmp_path).prepare()
    assert not list(tmp_path.iterdir())
    Security(tmp_path).prepare()
    assert Security(tmp_path).node.exists()
