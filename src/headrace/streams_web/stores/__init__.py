"""Stores over HTTP: what may be asked, and what each question gives."""
