"""Worker processes: start, watch, restart, report, and commands to a running application."""
