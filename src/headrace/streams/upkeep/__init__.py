"""What is done beside the records: purging, retention, looks at topics."""
