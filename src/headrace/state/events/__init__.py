"""Where events go: to structlog if the program has configured it, else to Python's logging."""
