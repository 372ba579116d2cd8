"""HTTP server of an application: metrics, health, dashboard, and JSON.

It serves the snapshots of `headrace.streams.metrics`, and runs no code of the user. It needs the
extra ``headrace[web]``. No package below imports this package.
"""

from __future__ import annotations
