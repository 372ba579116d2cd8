"""What is compared: the library, and who else does the same jobs."""
