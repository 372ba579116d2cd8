"""Where values live: stores, the uncommitted buffer, key codecs. Bytes and time, no Kafka."""
