"""What is deployed, as it stands beside an offset, and what a new version changes of it."""
