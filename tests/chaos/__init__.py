"""The application under failures on a real cluster, and the checker that judges the outcome."""
