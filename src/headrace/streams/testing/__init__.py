"""The test driver, and a cluster in memory."""
