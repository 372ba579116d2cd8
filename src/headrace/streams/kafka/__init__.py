"""Kafka's clients: the seams, what stands behind them, and what their errors mean."""
