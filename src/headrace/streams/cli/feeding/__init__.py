"""The command `headrace feed`: rows of files and of databases into a topic."""
