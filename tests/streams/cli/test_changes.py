"""A save is noticed, and what is no file of the project is passed over."""

from __future__ import annotations

from pathlib import Path

from headrace.streams.cli.dev import FileWatcher


def save(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_what_is_saved_made_or_removed_is_told_once(tmp_path: Path) -> None:
    one, two = save(tmp_path / "one.py", "1"), save(tmp_path / "deep/er/two.toml", "2")
    changes = FileWatcher([tmp_path, tmp_path])
    assert changes.since() == []
    save(one, "12")
    three = save(tmp_path / "three.py", "3")
    assert changes.since() == [one, three]
    two.unlink()
    assert changes.since() == [two]
    assert changes.since() == []


def test_what_is_not_the_project_s_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path / "env/pyvenv.cfg", "")
    changes = FileWatcher([tmp_path])
    for place in (".git/x.py", "env/lib/x.py", "__pycache__/x.py", "data.csv", ".headrace/x.toml"):
        save(tmp_path / place, "x")
    assert changes.since() == []
    assert len(changes) == 0
