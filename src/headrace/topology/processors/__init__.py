"""The Processor API: processors, state stores and their wrappers."""
