"""How an application is seen from outside: metrics, health and JSON over HTTP.

It serves what `headrace.streams.facts` tells, and runs no code of the user. It needs the extra
``headrace[web]``, and nothing below it needs this room.
"""

from __future__ import annotations

if __name__ != "headrace.streams_web":
    # Under its bare name every module would be loaded a second time.
    raise ImportError("import it as headrace.streams_web")
