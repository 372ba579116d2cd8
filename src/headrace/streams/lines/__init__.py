"""Records as lines of JSON: what commands read from files and print."""
