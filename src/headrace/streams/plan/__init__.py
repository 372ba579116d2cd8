"""Plan of an application on a cluster: tasks, topics, offset metadata, deployed versions."""
