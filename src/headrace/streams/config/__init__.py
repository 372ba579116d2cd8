"""Settings: their table, their checks, and what Kafka's clients and Java's users call them."""
