"""What a start looks at before anyone joins, and ways back to a beginning."""
