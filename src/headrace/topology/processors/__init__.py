"""The user's own code: the Processor API, stores, and what stores look like to it."""
