"""How an application is seen from outside: metrics, health and JSON over HTTP.

It serves what `headrace.streams.facts` tells, and runs no code of the user. It needs the extra
``headrace[web]``, and nothing below it needs this room.
"""

from __future__ import annotations
