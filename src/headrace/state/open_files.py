"""Limit of open files of this process; RocksDB opens many files."""

from __future__ import annotations

import errno
import resource

FILES_OF_TASK = 10
FILES_OF_STORE = 20
_MOST = 1 << 20
"""Soft limit to set if the hard limit is infinite, which macOS rejects as a soft limit."""


def raise_open_files() -> int:
    """Raise the soft limit to the hard limit; 100 tasks with stores use up the usual 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return soft


def is_out_of_files(error: OSError) -> bool:
    return error.errno in (errno.EMFILE, errno.ENFILE)


def open_files_advice() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    return (
        f"this process may open {soft:,} files (hard limit: {most}), and needs about "
        f"{FILES_OF_TASK} for each task with stores and up to {FILES_OF_STORE} for each store of "
        "it; nothing is lost. Raise the hard limit (ulimit -Hn 65536, LimitNOFILE=65536 in "
        "systemd, --ulimit nofile=65536 in Docker), or run more workers with fewer tasks each"
    )
