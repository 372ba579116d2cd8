"""Where values live: committed stores, the uncommitted buffer, key codecs. Knows bytes and time, no Kafka."""
