"""Methods of `KStream` and `KTable`, one file for each kind that is large."""
