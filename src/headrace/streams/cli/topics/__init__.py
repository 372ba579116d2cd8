"""The commands `headrace topics`: make topics, look into them, write to them."""
