"""Programs that are compared: Headrace, and peers that run the same jobs."""
