"""What a cluster alone tells of an application: its tasks, who has them, how far they are."""
