"""Window and session operators, and suppression."""
