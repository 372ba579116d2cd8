"""The commands that look at an application on its cluster: lag, tasks, top, open transactions."""
