"""``python -m headrace`` is the command ``headrace``."""

from headrace.streams.cli.entry import main

if __name__ == "__main__":
    main()
