"""What an application is on a cluster: tasks, topics, what stands beside offsets."""
