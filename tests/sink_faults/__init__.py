"""Sinks under fire: workers, tables, connections and brokers fail, and rows equal a recount."""
