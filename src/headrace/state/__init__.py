"""Stores, the buffer of uncommitted rows, and key codecs. Bytes and time, no Kafka."""
