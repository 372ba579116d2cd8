"""Join operators; each module has a kind of join."""
