"""How long a test waits for what has to come: a bound for what hangs, no measure of speed."""

PATIENCE_S = 150.0
