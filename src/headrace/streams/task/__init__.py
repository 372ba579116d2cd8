"""One task: a sub-topology on one partition, from committed facts to the next commit."""
