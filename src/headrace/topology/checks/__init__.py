"""What can be said of a topology before it runs: loops, keys that cannot meet, names."""
