"""``python -m experiments``."""

from experiments.cli import main

if __name__ == "__main__":
    main()
