"""Steps that gather records, and call for many at a time what is outside, or a model."""
