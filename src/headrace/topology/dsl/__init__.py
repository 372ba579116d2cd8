"""What users call, one file a face."""
