"""The program that executors get: combined where that is right, and shipped."""
