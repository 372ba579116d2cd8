"""Topics of one cluster copied to another, each record once, and groups moved between them."""
