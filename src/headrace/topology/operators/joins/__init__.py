"""Join operators, one module per join."""
