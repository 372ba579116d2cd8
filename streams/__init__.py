"""How a topology runs on Kafka: settings, workers, tasks, the commit, restore, the test driver."""
