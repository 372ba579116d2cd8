"""``python -m headrace`` is the command ``headrace``."""

from headrace.streams.cli.main import main

if __name__ == "__main__":
    main()
