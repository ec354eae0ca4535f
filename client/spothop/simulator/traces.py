"""The readers of traces, which the injector of the command line uses, too."""

from __future__ import annotations

from spothop.traces import TraceError, Zone, ZoneTrace, read_lives, read_zones, zone_lives

__all__ = ["TraceError", "Zone", "ZoneTrace", "read_lives", "read_zones", "zone_lives"]
