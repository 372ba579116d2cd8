"""Where values live: stores, the uncommitted buffer, key codecs. Bytes and time, no Kafka."""

if __name__ != "headrace.state":
    # Under its bare name every module would be loaded a second time.
    raise ImportError("import it as headrace.state")
