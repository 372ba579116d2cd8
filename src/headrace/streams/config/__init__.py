"""Settings: their table, their checks, secrets, handlers, Java and client names."""
