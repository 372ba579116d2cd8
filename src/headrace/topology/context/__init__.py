"""What a step sees while it runs."""
