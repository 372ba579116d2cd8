"""Changelogs and topics as DataFrames."""
