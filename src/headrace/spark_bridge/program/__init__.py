"""The program that executors receive, and how it is shipped."""
