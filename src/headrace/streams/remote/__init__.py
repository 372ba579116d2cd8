"""Stores of an application that runs elsewhere, asked over HTTP: by programs, and by its hosts."""
