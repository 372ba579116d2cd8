"""Changes of stores, told to whoever follows them: the committed records of changelogs."""
