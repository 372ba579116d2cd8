"""Entry point of a worker's process; see `headrace.streams.supervisor.worker_process`."""

from __future__ import annotations

from headrace.streams.states import rare_collections


def main() -> None:
    with rare_collections():
        from headrace.streams.supervisor.worker_process import main as work

        work()


if __name__ == "__main__":
    main()
