"""Where a worker's process begins; see `headrace.streams.supervisor.worker_process`."""

from __future__ import annotations

from headrace.streams.states import rare_collections


def main() -> None:
    """Load what a worker is made of, and be one."""
    with rare_collections():
        from headrace.streams.supervisor.worker_process import main as work

        work()


if __name__ == "__main__":
    main()
