"""What follows when an error has stopped a worker: the user's answer, and a word to all others."""
