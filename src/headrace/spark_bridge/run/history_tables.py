"""Global tables of a Spark task, read to the planned ends before the first record.

A live application also reads a global table to the end of its topic before the first record, but
the table then changes while records are processed. In a backfill it stays as it was at planning.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.read import OpenConsumer, read_range
from headrace.state.memory import MemoryTaskState
from headrace.streams.kafka.protocols import Log
from headrace.streams.tasks.global_state import GlobalRows
from headrace.streams.tasks.global_tables import RowErrors
from headrace.topology.context.context import TableView
from headrace.topology.processors.store_faces import store_key


def load_global_tables(
    application: CompiledApplication, plan: BackfillPlan, open_consumer: OpenConsumer, log: Log
) -> Mapping[str, TableView]:
    """Read the topics of all global tables, and return the tables by node and by store."""
    config = application.config
    errors = RowErrors(config.handlers, config.null_key_policy, log)
    views: dict[str, TableView] = {}
    for table in application.global_plans:
        state = MemoryTaskState([table.store])
        for tp, start in plan.global_starts.items():
            if tp.topic != table.topic:
                continue
            end, timeout_s = plan.global_ends[tp], config.task_timeout_ms / 1000
            for records in read_range(open_consumer, tp, start, end, timeout_s=timeout_s):
                state.write({table.store.name: errors.rows(table, records)}, {})
        rows = GlobalRows(table, config.statestore_read_cache_max_bytes)
        rows.show(state.store(table.store.name))
        views[table.table] = views[store_key(table.store.name)] = rows
    return views


def no_rows(application: CompiledApplication) -> Mapping[str, TableView]:
    views: dict[str, TableView] = {}
    for table in application.global_plans:
        rows = GlobalRows(table, 0)
        rows.show(MemoryTaskState([table.store]).store(table.store.name))
        views[table.table] = views[store_key(table.store.name)] = rows
    return views
